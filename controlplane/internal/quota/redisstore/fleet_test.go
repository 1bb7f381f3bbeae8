package redisstore_test

import (
	"context"
	"net/url"
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
)

// A Cluster does what one server does; when a master dies, its keys fail until a
// replica has its place, and the others never.
func TestCluster(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		c := redistest.StartCluster(t, b)
		t.Run("conformance", func(t *testing.T) {
			conform(t, func() quota.Store {
				store, err := try(t, redisstore.Options{URL: c.URL()})
				require.NoError(t, err)
				return store
			})
		})
		_, err := try(t, redisstore.Options{URL: "redis://" + c.Servers[0].Addr()})
		require.ErrorContains(t, err, "use redis+cluster://")
		store := open(t, c.URL())
		t.Run("a master stands still", func(t *testing.T) { standstill(t, store, c) })
		t.Run("a master dies", func(t *testing.T) { failover(t, store, c) })
		// A Cluster without one of its servers opens.
		require.NoError(t, open(t, c.URL()).Close())
	})
}

// standstill stops a master for less than it takes to replace it: the keys of the
// others are answered at once.
func standstill(t *testing.T, store *redisstore.Store, c *redistest.Cluster) {
	const n, timeout = 60, 200 * time.Millisecond
	now := timeOf(t, store)
	swaps := make([]quota.Swap, n)
	require.Eventually(t, func() bool { // until the store knows the slots
		for i := range swaps {
			swaps[i] = write(now, newKey(), nil, newValue(""))
		}
		stopped := c.Servers[0]
		stopped.Signal(syscall.SIGSTOP)
		defer stopped.Signal(syscall.SIGCONT)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		start := time.Now()
		var all sync.WaitGroup
		var swapped, late, failed atomic.Int64
		all.Add(n)
		store.Swap(ctx, swaps, func(_ int, r quota.Result) {
			defer all.Done()
			switch {
			case r.Outcome != quota.Swapped:
				failed.Add(1)
			case time.Since(start) > timeout/2:
				late.Add(1)
			default:
				swapped.Add(1)
			}
		})
		all.Wait()
		return late.Load() == 0 && failed.Load() > 0 && swapped.Load() > n/3
	}, 10*time.Second, 300*time.Millisecond)
}

// failover kills a master while values are swapped. Those of its own are swapped on when
// a replica has its place; those of the others meanwhile, and none of them fails but for
// want of time, which a busy machine does not give.
func failover(t *testing.T, store *redisstore.Store, c *redistest.Cluster) {
	const counters = 48 // none of them on the master that dies: once in 10⁸ runs
	now := timeOf(t, store)
	var killed atomic.Bool
	var waited, failed, left atomic.Int64
	left.Store(counters) // that are not known to be swapped on
	var all sync.WaitGroup
	for range counters {
		all.Go(func() {
			var old []byte
			var longest time.Duration // between two swaps
			failure := false
			key, last, after := newKey(), time.Now(), 0
			for ; left.Load() > 0; time.Sleep(2 * time.Millisecond) {
				value := newValue("")
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				done := make(chan quota.Result, 1)
				store.Swap(ctx, []quota.Swap{write(now, key, old, value)}, func(_ int, r quota.Result) { done <- r })
				r := <-done
				cancel()
				switch r.Outcome {
				case quota.Swapped:
					old, longest, last = value, max(longest, time.Since(last)), time.Now()
					if killed.Load() {
						if after++; after == 20 {
							left.Add(-1)
						}
					}
				case quota.Failed:
					failure = failure || !strings.Contains(r.Err.Error(), "did not answer in time")
				default:
					old = r.Value
				}
			}
			if longest > redistest.Failover {
				waited.Add(1)
			}
			if failure {
				failed.Add(1)
			}
		})
	}
	c.FailOver()
	c.Servers[1].Kill()
	killed.Store(true)
	all.Wait()
	require.Less(t, failed.Load(), int64(counters), "keys of the other masters never failed")
	require.Positive(t, failed.Load(), "keys of the dead master failed")
	require.Less(t, waited.Load(), int64(counters), "keys of the other masters never waited for a replica")
	require.Positive(t, waited.Load(), "some keys were on the master that died")
}

// The store follows Sentinel to the new master, and is refused nothing on the way but
// with a word.
func TestSentinel(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		servers, at := redistest.StartSentinel(t, b, password)
		_, err := try(t, redisstore.Options{URL: strings.Replace(at, "/"+redistest.SentinelName, "/other", 1), PasswordFile: passwordFile(t, password)})
		require.ErrorContains(t, err, "the quota store")
		_, err = try(t, redisstore.Options{URL: at, PasswordFile: passwordFile(t, "s3cr3t-wrong")})
		require.ErrorContains(t, err, "WRONGPASS")
		store := open(t, strings.Replace(at, "://", "://"+url.UserPassword("", password).String()+"@", 1))
		now, key := timeOf(t, store), newKey()
		first := newValue("first")
		require.Equal(t, quota.Swapped, swap(t, store, write(now, key, nil, first)).Outcome)
		require.Eventually(t, func() bool { return servers.Replica.Do("DBSIZE") == "1" }, 5*time.Second, 10*time.Millisecond)
		servers.Master.Kill()
		second := newValue("second")
		require.Eventually(t, func() bool {
			r := swap(t, store, write(now, key, first, second))
			return r.Outcome == quota.Swapped
		}, 30*time.Second, 20*time.Millisecond, "an election may fail, and comes again")
		require.Equal(t, second, swap(t, store, quota.Swap{Key: key}).Value)
		require.Contains(t, servers.Replica.Do("INFO", "replication"), "role:master")
	})
}
