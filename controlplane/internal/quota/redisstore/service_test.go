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
	ready := make(chan struct{}, 1)
	st, err := s.Open(quota.Peer{Address: "test"}, func() {
		select {
		case ready <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	defer st.Close()
	m := lease.Asks{Domain: "d", Process: 1, Definitions: []lease.Definition{d}}
	for {
		m.Asks = []lease.Ask{{ID: 1, Parts: []lease.Part{{Definition: 1, Cost: 1, Waiting: 1}}}}
		require.NoError(t, st.Receive(m.Append(nil)))
		m = lease.Asks{}
		var answers lease.Answers
		for len(answers.Answers) == 0 {
			<-ready
			if b, ok := st.Next(nil); ok {
				require.NoError(t, answers.Decode(b))
			}
		}
		a := answers.Answers[0]
		if a.Result == lease.Denied {
			return got
		}
		require.Equal(t, lease.Granted, a.Result)
		got += a.Grants[0].Units
	}
}
