package redisstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestServicesKeepTheirSecret: a service that starts after the store has lost its state
// counts with those that ran before.
func TestServicesKeepTheirSecret(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, binary servertest.Binary) {
		server := servertest.StartRedis(t, binary)
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
			ID: 1, Windows: []limit.Window{{Algorithm: limit.FixedWindow, Limit: 20, PeriodNs: 24 * int64(time.Hour)}}, Lease: lease.LeaseOff,
		}
		a, b := newAsker(t, old, d), newAsker(t, fresh, d)
		for range 10 {
			require.Equal(t, lease.Granted, a.ask(t, [16]byte{})[0].Result)
			require.Equal(t, lease.Granted, b.ask(t, [16]byte{})[0].Result)
		}
		require.Equal(t, lease.Denied, a.ask(t, [16]byte{})[0].Result)
	})
}
