package redisstore_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/storetest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

func open(t testing.TB, url string) *redisstore.Store {
	t.Helper()
	store, err := try(t, redisstore.Options{URL: url})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

func try(t testing.TB, o redisstore.Options) (*redisstore.Store, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return redisstore.Open(ctx, o)
}

// forAll runs the test beside each server's name.
func forAll(t *testing.T, test func(t *testing.T, b servertest.Binary)) {
	for _, b := range servertest.Redises(t) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			test(t, b)
		})
	}
}

// TestAClockSetBack: a server whose clock was set back over its mark does not begin as late as
// that says, but now.
func TestAClockSetBack(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		server := servertest.StartRedis(t, b)
		store := open(t, "redis://"+server.Addr())
		now := storetest.TimeOf(t, store)
		w := storetest.Write(now, storetest.NewKey(), nil, storetest.NewValue("a"))
		w.AgeNs = int64(time.Hour)
		storetest.Swap(t, store, w)
		mark := server.Do("KEYS", "*since")
		server.Do("SET", mark, strconv.FormatInt(now/1000+3600_000_000, 10))
		begun := storetest.Swap(t, store, w)
		require.Equal(t, swapstore.Young, begun.Status)
		require.Less(t, begun.AgeNs, int64(time.Second), "it begins now")
		again := storetest.Swap(t, store, w)
		require.Equal(t, again.NowNs-begun.NowNs, again.AgeNs-begun.AgeNs)
	})
}

// What a store does costs nothing that the server forgets its scripts all the time.
func TestConformance(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		server := servertest.StartRedis(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		var flushing sync.WaitGroup
		flushing.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
				server.Do("SCRIPT", "FLUSH")
			}
		})
		storetest.Conform(t, func() swapstore.Store {
			store, err := try(t, redisstore.Options{URL: "redis://" + server.Addr()})
			require.NoError(t, err)
			return store
		})
		cancel()
		flushing.Wait()
	})
}
