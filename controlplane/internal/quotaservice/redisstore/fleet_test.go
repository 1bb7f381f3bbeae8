package redisstore_test

import (
	"context"
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/storetest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// A Cluster does what one server does; a master that stands still holds up no other's keys.
func TestCluster(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		c := servertest.StartCluster(t, b)
		t.Run("conformance", func(t *testing.T) {
			storetest.Conform(t, func() swapstore.Store {
				store, err := try(t, redisstore.Options{URL: c.URL()})
				require.NoError(t, err)
				return store
			})
		})
		_, err := try(t, redisstore.Options{URL: "redis://" + c.Servers[0].Addr()})
		require.ErrorContains(t, err, "use redis+cluster://")
		store := open(t, c.URL())
		now := storetest.TimeOf(t, store)
		c.Servers[3].Do("CLUSTER", "FAILOVER")
		require.Eventually(t, func() bool { return strings.Contains(c.Servers[0].Do("INFO", "replication"), "role:slave") },
			30*time.Second, 10*time.Millisecond)
		for range 60 { // keys of all masters
			w := storetest.Write(now, storetest.NewKey(), nil, storetest.NewValue(""))
			storetest.Swapped(t, storetest.Swap(t, store, w))
		}
		c.Servers[0], c.Servers[3] = c.Servers[3], c.Servers[0]
		standstill(t, store, c)
		for _, server := range c.Servers {
			server.Do("ACL", "SETUSER", "default", "-cluster")
		}
		_, _, err = store.Tend(t.Context())
		require.ErrorContains(t, err, "NOPERM: the user may not do that")
		require.ErrorContains(t, err, "in a Cluster also cluster slots and cluster shards")
		for _, server := range c.Servers {
			server.Do("ACL", "SETUSER", "default", "+cluster")
		}
		c.Servers[1].Kill()
		// A Cluster without one of its servers opens.
		require.NoError(t, open(t, c.URL()).Close())
	})
}

// TestAServerOfAClusterLosesItsState: first all servers are new, each slot from the start on. One
// that loses its state begins anew with all its slots, also those that nobody uses, and no other
// one does.
func TestAServerOfAClusterLosesItsState(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		const slots = 16384
		c := servertest.StartCluster(t, b)
		store := open(t, c.URL())
		look := func() (ns int64, anew bool) {
			ns, anew, err := store.Tend(t.Context())
			require.NoError(t, err)
			return ns, anew
		}
		begin := time.Now()
		_, anew := look()
		first := time.Since(begin)
		require.True(t, anew)
		require.Equal(t, slots, marks(t, c))
		begin = time.Now()
		_, anew = look()
		t.Logf("the first look takes %s, another one %s", first, time.Since(begin))
		require.False(t, anew)
		_, anew, err := open(t, c.URL()).Tend(t.Context())
		require.NoError(t, err)
		require.True(t, anew, "another service does not know it")
		now := storetest.TimeOf(t, store)
		young, old := begun(t, store, now)
		require.Equal(t, []int{0, 100}, []int{young, old})

		c.Move(0, 0, 1)
		for range 20 { // whichever node says where slots are
			_, anew = look()
			require.False(t, anew, "a slot that moves takes its state along")
		}
		require.Equal(t, slots, marks(t, c))

		now = storetest.TimeOf(t, store)
		c.Servers[1].Do("FLUSHALL")
		ns, anew := look()
		require.True(t, anew)
		require.Zero(t, ns, "it begins at this look")
		require.Equal(t, slots, marks(t, c))
		young, old = begun(t, store, now)
		require.Greater(t, young, 10)
		require.Greater(t, old, 40)
		_, anew = look()
		require.False(t, anew)

		c.Servers[2].Kill()
		c.Servers[0].Do("FLUSHALL")
		ns, anew = look()
		require.True(t, anew, "also while another server is away")
		require.Zero(t, ns)
	})
}

// marks counts the marks of a Cluster that has nothing else.
func marks(t *testing.T, c *servertest.Cluster) (n int) {
	for _, server := range c.Servers[:3] {
		own, err := strconv.Atoi(server.Do("DBSIZE"))
		require.NoError(t, err)
		n += own
	}
	return n
}

// begun counts the slots of 100 keys that have begun after an instant of the store's clock, and those before.
func begun(t *testing.T, store *redisstore.Store, sinceNs int64) (after, before int) {
	for range 100 {
		r := storetest.Swap(t, store, swapstore.Swap{Key: storetest.NewKey(), AgeNs: int64(time.Hour)})
		require.Equal(t, swapstore.Young, r.Status)
		if r.NowNs-r.AgeNs > sinceNs {
			after++
		} else {
			before++
		}
	}
	return after, before
}

// TestASlotMoves: meanwhile what holds nothing goes on with new keys, beside the mark that is still
// where the slot was.
func TestASlotMoves(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		c := servertest.StartCluster(t, b)
		store := open(t, c.URL()+"?prefix=p:")
		_, _, err := store.Tend(t.Context())
		require.NoError(t, err)
		key, slot := storetest.NewKey(), -1
		for slot < 0 || slot > 5000 { // of the first master
			key = storetest.NewKey()
			slot, err = strconv.Atoi(c.Servers[0].Do("CLUSTER", "KEYSLOT", "p:"+base64.RawURLEncoding.EncodeToString(key[:])))
			require.NoError(t, err)
		}
		c.BeginMove(slot, 0, 1)
		now, value := storetest.TimeOf(t, store), storetest.NewValue("a")
		r := storetest.Swap(t, store, storetest.Write(now, key, nil, value))
		require.Equal(t, swapstore.Swapped, r.Status, "%v", r.Err)
		c.Move(slot, 0, 1)
		require.Equal(t, value, storetest.Swap(t, store, swapstore.Swap{Key: key, AgeNs: 1000}).Value)
	})
}

// standstill stops a master for less than it takes to replace it: the keys of the
// others are answered at once.
func standstill(t *testing.T, store *redisstore.Store, c *servertest.Cluster) {
	const n, timeout = 60, 2 * time.Second
	now := storetest.TimeOf(t, store)
	swaps := make([]swapstore.Swap, n)
	require.Eventually(t, func() bool { // until the store knows the slots
		for i := range swaps {
			swaps[i] = storetest.Write(now, storetest.NewKey(), nil, storetest.NewValue(""))
		}
		stopped := c.Servers[0]
		stopped.Signal(syscall.SIGSTOP)
		defer stopped.Signal(syscall.SIGCONT)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		var all sync.WaitGroup
		var swapped, late, failed atomic.Int64
		all.Add(n)
		store.Swap(ctx, swaps, func(_ int, r swapstore.Result) {
			defer all.Done()
			switch {
			case r.Status != swapstore.Swapped:
				failed.Add(1)
			case failed.Load() > 0:
				late.Add(1) // than the stopped server's
			default:
				swapped.Add(1)
			}
		})
		all.Wait()
		return late.Load() == 0 && failed.Load() > 0 && swapped.Load() > n/3
	}, time.Minute, 300*time.Millisecond)
}

// The store follows Sentinel to the new master, and is refused nothing on the way but
// with a word.
func TestSentinel(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		servers, at := servertest.StartSentinel(t, b, password)
		other := strings.Replace(at, "/"+servertest.SentinelName, "/other", 1)
		_, err := try(t, redisstore.Options{URL: other, PasswordFile: passwordFile(t, password)})
		require.ErrorContains(t, err, "the quota store")
		_, err = try(t, redisstore.Options{URL: at, PasswordFile: passwordFile(t, "s3cr3t-wrong")})
		require.ErrorContains(t, err, "WRONGPASS")
		store := open(t, strings.Replace(at, "://", "://"+url.UserPassword("", password).String()+"@", 1))
		now, key := storetest.TimeOf(t, store), storetest.NewKey()
		first := storetest.NewValue("first")
		require.Equal(t, swapstore.Swapped, storetest.Swap(t, store, storetest.Write(now, key, nil, first)).Status)
		require.Eventually(t, func() bool { return servers.Replica.Do("DBSIZE") == "1" }, 30*time.Second, 10*time.Millisecond)
		servers.Master.Kill()
		second := storetest.NewValue("second")
		require.Eventually(t, func() bool {
			r := storetest.Swap(t, store, storetest.Write(now, key, first, second))
			return r.Status == swapstore.Swapped
		}, 30*time.Second, 20*time.Millisecond, "an election may fail, and comes again")
		require.Equal(t, second, storetest.Swap(t, store, swapstore.Swap{Key: key}).Value)
		require.Contains(t, servers.Replica.Do("INFO", "replication"), "role:master")
	})
}
