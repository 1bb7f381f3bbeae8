package redisstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/redistest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestServicesGrantALimitOnce: three services on one server, which all ask for the
// same keys, grant each limit exactly.
func TestServicesGrantALimitOnce(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		server := redistest.Start(t, b)
		var services []*quota.Service
		for range 3 {
			s, err := quota.NewService(t.Context(), quota.Options{Store: open(t, "redis://"+server.Addr())})
			require.NoError(t, err)
			services = append(services, s)
		}
		hour := int64(time.Hour)
		for name, w := range map[string]limit.Window{
			"fixed":   {Algorithm: limit.FixedWindow, Limit: 300, PeriodNs: 24 * hour},
			"per key": {Algorithm: limit.FixedWindowPerKey, Limit: 300, PeriodNs: hour},
			"counter": {Algorithm: limit.SlidingWindowCounter, Limit: 300, PeriodNs: 24 * hour},
			"log":     {Algorithm: limit.SlidingWindowLog, Limit: 300, PeriodNs: hour, Units: 300},
			"bucket":  {Algorithm: limit.TokenBucket, Limit: 1, PeriodNs: 24 * hour, Burst: 300},
		} {
			d := lease.Definition{ID: 1, Counter: [16]byte{name[0], name[1]}, Windows: []limit.Window{w}, Lease: lease.LeaseAuto}
			var all sync.WaitGroup
			granted := make([]uint32, 6)
			for i := range granted {
				all.Go(func() { granted[i] = drink(t, services[i%3], d) })
			}
			all.Wait()
			total := uint32(0)
			for _, n := range granted {
				total += n
			}
			require.LessOrEqual(t, total, uint32(300), name)
			least := uint32(300)
			if w.Algorithm == limit.TokenBucket { // until a lease ends, what the bucket gains by then is held back
				least--
			}
			require.GreaterOrEqual(t, total, least, name)
		}
	})
}

// drink asks for one unit at a time until it is denied, and returns how many it got.
func drink(t *testing.T, s *quota.Service, d lease.Definition) (got uint32) {
	a := newAsker(t, s, d)
	defer a.Close()
	for {
		answer := a.ask(t, [16]byte{})[0]
		if answer.Result == lease.Denied {
			return got
		}
		require.Equal(t, lease.Granted, answer.Result)
		got += answer.Grants[0].Units
	}
}

// TestServicesKeepTheirSecret: a service that starts after the store has lost its state
// counts with those that ran before.
func TestServicesKeepTheirSecret(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b redistest.Binary) {
		server := redistest.Start(t, b)
		start := func(settle time.Duration) *quota.Service {
			s, err := quota.NewService(t.Context(), quota.Options{Store: open(t, "redis://"+server.Addr()), Settle: settle})
			require.NoError(t, err)
			return s
		}
		old := start(0)
		server.Do("FLUSHALL")
		time.AfterFunc(200*time.Millisecond, old.Heartbeat)
		fresh := start(time.Second)
		d := lease.Definition{
			ID: 1, Windows: []limit.Window{{Algorithm: limit.FixedWindow, Limit: 20, PeriodNs: 24 * int64(time.Hour)}}, Lease: lease.LeaseAuto,
		}
		require.EqualValues(t, 20, drink(t, old, d)+drink(t, fresh, d))
	})
}
