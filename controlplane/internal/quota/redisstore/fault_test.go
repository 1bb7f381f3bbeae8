package redisstore_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/redistest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota/redisstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota/storetest"
)

// A swap whose answer is lost was carried out; it fails and is not sent again.
func TestLostAnswerIsNotRepeated(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		server := redistest.Start(t, b)
		middle := standBetween(t, server.Addr())
		store := open(t, middle.url())
		now := storetest.Now(t, store) // the server knows the script
		server.Do("CONFIG", "RESETSTAT")
		middle.cut()
		const n = 50
		swaps := make([]quota.Swap, n)
		for i := range swaps {
			swaps[i] = storetest.Write(now, storetest.Key(), nil, storetest.Value(fmt.Sprintf("swap number %d.", i)))
		}
		for _, r := range storetest.All(t, store, swaps) {
			require.Equal(t, quota.Failed, r.Outcome)
			require.Error(t, r.Err)
			require.Zero(t, r.NowNs)
			require.Nil(t, r.Value)
		}
		for i := range swaps {
			require.Eventually(t, func() bool {
				return bytes.Equal(swaps[i].New, storetest.Do(t, store, quota.Swap{Key: swaps[i].Key}).Value)
			}, 5*time.Second, 10*time.Millisecond, "the swap was carried out")
			require.Equal(t, 1, middle.times(swaps[i].New))
		}
		require.Contains(t, server.Do("INFO", "commandstats"), fmt.Sprintf("cmdstat_set:calls=%d,", n))
	})
}

// A server that dies among swaps: each was sent once at most, each has one result,
// and what was reported as swapped was sent.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		server := redistest.Start(t, b)
		middle := standBetween(t, server.Addr())
		store := open(t, middle.url())
		now := storetest.Now(t, store)
		var mu sync.Mutex
		var sent [][]byte
		var failed, swapped atomic.Int64
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for n := 0; failed.Load() == 0; n++ {
					swaps := make([]quota.Swap, 20)
					for i := range swaps {
						mark := fmt.Sprintf("<%d.%d.%d>", worker, n, i)
						swaps[i] = storetest.Write(now, storetest.Key(), nil, storetest.Value(mark))
					}
					for i, r := range storetest.All(t, store, swaps) {
						if r.Outcome == quota.Failed {
							failed.Add(1)
						} else {
							swapped.Add(1)
						}
						mu.Lock()
						sent = append(sent, swaps[i].New[quota.NonceBytes:])
						mu.Unlock()
					}
				}
			})
		}
		for swapped.Load() < 1000 {
			time.Sleep(time.Millisecond)
		}
		server.Kill()
		all.Wait()
		require.Positive(t, failed.Load())
		for _, mark := range sent {
			require.LessOrEqual(t, middle.times(mark), 1, "%s", mark)
		}
		// It is back without its data and its scripts, and serves.
		server.Restart()
		require.Eventually(t, func() bool {
			return storetest.Do(t, store, storetest.Write(now, storetest.Key(), nil, storetest.Value(""))).Outcome == quota.Swapped
		}, 5*time.Second, 10*time.Millisecond)
	})
}

// A server that forgets its scripts among swaps costs none of them.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		server := redistest.Start(t, b)
		store := open(t, "redis://"+server.Addr())
		now := storetest.Now(t, store)
		stop := make(chan struct{})
		var flushing sync.WaitGroup
		flushing.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					server.Do("SCRIPT", "FLUSH")
				}
			}
		})
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				var old []byte
				key := storetest.Key()
				for i := range 200 {
					value := storetest.Value(fmt.Sprint(i))
					r := storetest.Do(t, store, storetest.Write(now, key, old, value))
					if r.Outcome != quota.Swapped {
						t.Errorf("swap %d came to %d: %v", i, r.Outcome, r.Err)
						return
					}
					old = value
				}
			})
		}
		all.Wait()
		close(stop)
		flushing.Wait()
	})
}

// A server that stands still fails swaps at their deadline, however many there are,
// and refuses by the clock what it finds when it goes on.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	const timeout, tolerance = 100 * time.Millisecond, time.Second // 2,000 of them, on any machine; the client itself takes 3 s
	forAll(t, func(t *testing.T, b redistest.Binary) {
		server := redistest.Start(t, b)
		store := open(t, "redis://"+server.Addr())
		server.Signal(syscall.SIGSTOP)
		var latest, busy atomic.Int64
		var all sync.WaitGroup
		var swaps []quota.Swap
		for range 2000 { // more than may be under way
			w := storetest.Write(time.Now().UnixNano(), storetest.Key(), nil, storetest.Value(""))
			w.UntilNs = w.AtNs + int64(timeout)
			swaps = append(swaps, w)
			all.Add(1)
			start := time.Now()
			ctx, cancel := context.WithDeadline(t.Context(), start.Add(timeout))
			defer cancel()
			store.Swap(ctx, []quota.Swap{w}, func(_ int, r quota.Result) {
				defer all.Done()
				took := int64(time.Since(start))
				for old := latest.Load(); took > old && !latest.CompareAndSwap(old, took); old = latest.Load() {
				}
				if r.Err != nil && strings.Contains(r.Err.Error(), "too many swaps under way") {
					busy.Add(1)
				} else if r.Outcome != quota.Failed || !strings.Contains(r.Err.Error(), "in time") {
					t.Errorf("outcome %d: %v", r.Outcome, r.Err)
				}
			})
		}
		all.Wait()
		require.Less(t, time.Duration(latest.Load()), timeout+tolerance)
		t.Log("the last of them failed after", time.Duration(latest.Load()))
		require.Positive(t, busy.Load(), "those beyond what may be under way were not sent")
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := store.Live(ctx, "d", 1)
		require.ErrorContains(t, err, "in time")
		_, err = store.Secret(ctx, "s", nil)
		require.ErrorContains(t, err, "in time")
		server.Signal(syscall.SIGCONT)
		require.Eventually(t, func() bool { return storetest.Do(t, store, swaps[0]).Outcome != quota.Failed }, 5*time.Second, 10*time.Millisecond)
		require.Equal(t, "0", server.Do("DBSIZE"), "nothing was written late")
	})
}

// What a server refuses fails with what to do, and without the key.
func TestRefusals(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		server := redistest.Start(t, b)
		store := open(t, "redis://"+server.Addr())
		now, key := storetest.Now(t, store), storetest.Key()
		for _, c := range []struct{ name, do, undo, says string }{
			{"full", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM: its memory is full: raise maxmemory"},
			{"read-only", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY: it is a replica"},
			{"without replicas", "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "NOREPLICAS: it has fewer replicas"},
		} {
			server.Do(strings.Fields(c.do)...)
			r := storetest.Do(t, store, storetest.Write(now, key, nil, storetest.Value("v")))
			require.Equal(t, quota.Failed, r.Outcome, c.name)
			require.ErrorContains(t, r.Err, c.says)
			server.Do(strings.Fields(c.undo)...)
			require.Equal(t, quota.Differs, storetest.Do(t, store, quota.Swap{Key: key}).Outcome, c.name)
		}
		require.Equal(t, quota.Swapped, storetest.Do(t, store, storetest.Write(now, key, nil, storetest.Value("v"))).Outcome)
		name := strings.TrimSpace(server.Do("KEYS", "*"))
		server.Do("DEL", name)
		server.Do("LPUSH", name, "x")
		r := storetest.Do(t, store, storetest.Write(now, key, nil, storetest.Value("v")))
		require.ErrorContains(t, r.Err, "WRONGTYPE: something else is under a key of the store")
		require.NotContains(t, r.Err.Error(), name)
	})
}

// A closed store fails swaps at once.
func TestClosed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Redis(t)[0])
	store, err := try(t, redisstore.Options{URL: "redis://" + server.Addr()})
	require.NoError(t, err)
	require.NoError(t, store.Close())
	r := storetest.Do(t, store, quota.Swap{Key: storetest.Key()})
	require.Equal(t, quota.Failed, r.Outcome)
	require.ErrorContains(t, r.Err, "closed")
}
