package redisstore_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/storetest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// A swap whose answer is lost was carried out; it fails and is not sent again.
func TestLostAnswerIsNotRepeated(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		server := servertest.StartRedis(t, b)
		middle := standBetween(t, server.Addr())
		store := open(t, middle.url())
		now := storetest.TimeOf(t, store) // the server knows the script
		server.Do("CONFIG", "RESETSTAT")
		middle.cut()
		const n = 50
		swaps := make([]swapstore.Swap, n)
		for i := range swaps {
			swaps[i] = storetest.Write(now, storetest.NewKey(), nil, storetest.NewValue(fmt.Sprintf("swap number %d.", i)))
		}
		for _, r := range storetest.SwapAll(t.Context(), t, store, swaps) {
			require.Equal(t, swapstore.Failed, r.Status)
			require.Error(t, r.Err)
			require.Zero(t, r.NowNs)
			require.Nil(t, r.Value)
		}
		for what, calls := range map[string]int{"evalsha": n, "set": n} { // a repeated one would set nothing
			require.Eventually(t, func() bool {
				return strings.Contains(server.Do("INFO", "commandstats"), fmt.Sprintf("cmdstat_%s:calls=%d,", what, calls))
			}, 30*time.Second, 10*time.Millisecond, "each was carried out, once: %s", what)
		}
		for i := range swaps {
			require.Equal(t, swaps[i].New, storetest.Swap(t, store, swapstore.Swap{Key: swaps[i].Key}).Value)
		}
	})
}

// A server that stands still fails swaps at their deadline, however many there are,
// and refuses by the clock what it finds when it goes on.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	forAll(t, func(t *testing.T, b servertest.Binary) {
		server := servertest.StartRedis(t, b)
		store := open(t, "redis://"+server.Addr())
		server.Signal(syscall.SIGSTOP)
		var swaps []swapstore.Swap
		var all, deadlines sync.WaitGroup
		start := time.Now()
		for range 2000 { // more than the client has room for
			w := storetest.Write(start.UnixNano(), storetest.NewKey(), nil, storetest.NewValue(""))
			w.UntilNs = start.Add(timeout).UnixNano()
			swaps = append(swaps, w)
			all.Add(1)
			ctx, cancel := context.WithDeadline(t.Context(), start.Add(timeout))
			defer cancel()
			deadlines.Add(1)
			context.AfterFunc(ctx, deadlines.Done)
			store.Swap(ctx, []swapstore.Swap{w}, func(_ int, r swapstore.Result) {
				if r.Status != swapstore.Failed || !strings.Contains(r.Err.Error(), "in time") {
					t.Errorf("status %d: %v", r.Status, r.Err)
				}
				all.Done()
			})
		}
		deadlines.Wait()
		alone := time.Since(start) // on this machine, now
		all.Wait()
		require.Less(t, time.Since(start), 10*alone, "the client itself takes 3 s")
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := store.Live(ctx, "d", 1)
		require.ErrorContains(t, err, "in time")
		_, err = store.Secret(ctx, "s", nil)
		require.ErrorContains(t, err, "in time")
		server.Signal(syscall.SIGCONT)
		require.Eventually(t, func() bool { return storetest.Swap(t, store, swaps[0]).Status != swapstore.Failed },
			30*time.Second, 10*time.Millisecond)
		require.Equal(t, "0", server.Do("DBSIZE"), "nothing was written late")
	})
}

// What a server refuses fails with what to do, and without the key.
func TestRefusals(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		server := servertest.StartRedis(t, b)
		store := open(t, "redis://"+server.Addr())
		now, key := storetest.TimeOf(t, store), storetest.NewKey()
		for _, c := range []struct{ name, do, undo, says string }{
			{"full", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM: its memory is full: raise maxmemory"},
			{"read-only", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY: it is a replica"},
			{"without replicas", "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0",
				"NOREPLICAS: it has fewer replicas"},
		} {
			server.Do(strings.Fields(c.do)...)
			r := storetest.Swap(t, store, storetest.Write(now, key, nil, storetest.NewValue("v")))
			require.Equal(t, swapstore.Failed, r.Status, c.name)
			require.ErrorContains(t, r.Err, c.says)
			server.Do(strings.Fields(c.undo)...)
			require.Equal(t, swapstore.Read, storetest.Swap(t, store, swapstore.Swap{Key: key}).Status, c.name)
		}
		w := storetest.Write(now, key, nil, storetest.NewValue("v"))
		require.Equal(t, swapstore.Swapped, storetest.Swap(t, store, w).Status)
		name := strings.TrimSpace(server.Do("KEYS", "*"))
		server.Do("DEL", name)
		server.Do("LPUSH", name, "x")
		r := storetest.Swap(t, store, storetest.Write(now, key, nil, storetest.NewValue("v")))
		require.ErrorContains(t, r.Err, "WRONGTYPE: something else is under a key of the store")
		require.NotContains(t, r.Err.Error(), name)
	})
}

// demote makes a master the replica of what was its replica.
func demote(master, replica *servertest.RedisServer) {
	replica.Do("REPLICAOF", "NO", "ONE")
	master.Do("REPLICAOF", "127.0.0.1", strconv.Itoa(replica.Port))
}

// A store whose address leads to a new master goes there, while the connections to the old one
// stay; it asks the old one for no connection after another.
func TestRepointed(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		old, fresh := servertest.StartRedis(t, b), servertest.StartRedis(t, b)
		fresh.Do("REPLICAOF", "127.0.0.1", strconv.Itoa(old.Port))
		middle := standBetween(t, old.Addr())
		store := open(t, middle.url())
		first := storetest.Write(storetest.TimeOf(t, store), storetest.NewKey(), nil, storetest.NewValue("first"))
		require.Equal(t, swapstore.Swapped, storetest.Swap(t, store, first).Status)
		require.Eventually(t, func() bool { return fresh.Do("DBSIZE") == old.Do("DBSIZE") },
			30*time.Second, 10*time.Millisecond)

		second := storetest.Write(storetest.TimeOf(t, store), first.Key, first.New, storetest.NewValue("second"))
		demote(old, fresh)
		before := middle.dials.Load()
		began := time.Now()
		for range 200 {
			require.Equal(t, swapstore.Failed, storetest.Swap(t, store, second).Status)
		}
		require.LessOrEqual(t, middle.dials.Load()-before, 1+int32(time.Since(began)/time.Second), "one connection a second")

		middle.repoint(fresh.Addr())
		require.Eventually(t, func() bool { return storetest.Swap(t, store, second).Status == swapstore.Swapped },
			30*time.Second, 50*time.Millisecond)
		require.Equal(t, second.New, storetest.Swap(t, store, swapstore.Swap{Key: first.Key}).Value)
		require.Contains(t, fresh.Do("INFO", "replication"), "role:master")
	})
}

// between passes bytes on between a store and its server.
type between struct {
	listener net.Listener
	server   atomic.Pointer[string] // that new connections lead to
	cuts     atomic.Int32
	dials    atomic.Int32
}

func standBetween(t *testing.T, server string) *between {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &between{listener: l}
	b.repoint(server)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			b.dials.Add(1)
			go b.pass(client)
		}
	}()
	return b
}

func (b *between) url() string { return "redis://" + b.listener.Addr().String() }

func (b *between) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", *b.server.Load())
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	cuts, buffer := b.cuts.Load(), make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil || b.cuts.Load() != cuts {
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// repoint leads new connections to another server, as a Service does whose endpoint has changed.
func (b *between) repoint(server string) { b.server.Store(&server) }

// cut drops the next answer on each connection that there is, and closes it.
func (b *between) cut() { b.cuts.Add(1) }
