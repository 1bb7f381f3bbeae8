package main_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// silent is a quota service that never answers.
type silent struct{}

func (silent) Send([]byte) {}
func (silent) CloseSend()  {}
func (silent) Cancel()     {}

// TestASilentQuotaServiceIsReported: in the access log, in the rule's metrics and in
// a gauge of its own, which covers every worker.
func TestASilentQuotaServiceIsReported(t *testing.T) {
	for then, want := range map[string]struct {
		status int
		word   string
	}{
		"local": {200, ""}, // decided as by an ordinary rule
		"allow": {200, "r=allowed:on_unavailable"},
		"deny":  {429, "r=denied:on_unavailable"},
	} {
		t.Run(then, func(t *testing.T) {
			b := start(t, func(o *sim.Options) {
				o.Workers = 2
				o.Dial = func(sim.Call, *sim.Inbox) (sim.Peer, error) { return silent{}, nil }
			})
			require.NoError(t, b.Configure(policy(`{"name":"r","scope":"cluster","key":[{"header":"x-user-id"}],"limits":["9/1h"],"on_unavailable":"`+then+`"}`)))
			for worker := range 2 {
				began := b.now
				x, err := b.Start(worker, alice)
				require.NoError(t, err)
				for x.Paused() {
					b.now += int64(time.Millisecond)
					b.TickDue()
				}
				require.InDelta(t, 100, (b.now-began)/1e6, 20, "quota.timeout, and some")
				res, err := x.Finish()
				require.NoError(t, err)
				require.Equal(t, want.status, res.Status)
				require.Equal(t, want.word, res.State["sluice.verdict"])
				require.EqualValues(t, worker+1, b.Metrics()["rate_limit_quota_degraded"])

				res = b.serve(t, worker, alice)
				require.Equal(t, want.status, res.Status, "nobody waits any more")
			}
			b.now += int64(10 * time.Second)
			b.tick(t)
			require.EqualValues(t, 4, b.Metrics()["rule=.=r;.;rate_limit_quota_unavailable_total"], "%v", b.Metrics())
		})
	}
}
