package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// silent is a quota service that never answers.
type silent struct{}

func (silent) Send([]byte) {}
func (silent) CloseSend()  {}
func (silent) Cancel()     {}

// The access log, the rule's metrics and a gauge for all workers show a quota service that does
// not answer.
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
			require.NoError(t,
				b.Configure([]byte(`{"version":1,`+manage+`,"rules":[{"name":"r","scope":"cluster",`+
					`"key":[{"header":"x-user-id"}],"limits":["9/1h"],"on_unavailable":"`+then+`"}]}`)))
			for worker := range 2 {
				if worker == 1 { // has not asked, and uses what the other worker reports
					require.Contains(t, string(b.serve(t, worker, explainRequest(`{"headers":{"x-user-id":"alice"}}`)).Body),
						`"lease":{"units":0,"silent":"`+then+`"}`)
					require.Contains(t, string(b.serve(t, worker, &sim.Request{
						Method:  "POST",
						Path:    "/.sluice/counters/leased?rule=r&key=alice",
						Headers: [][2]string{{"authorization", "Bearer test"}},
					}).Body), `{"value":0,"silent":"`+then+`"`)
				}
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

// prompt is a quota service that grants what it is asked for, and leases more beside.
type prompt struct {
	silent
	in    *sim.Inbox
	after time.Duration
	ahead uint32
}

func (p prompt) Send(message []byte) {
	var asks quota.Asks
	if err := asks.Decode(message); err != nil {
		panic(err)
	}
	answers := quota.Results{Proxies: 2}
	for _, ask := range asks.Asks {
		answer := quota.AskResult{ID: ask.ID, Outcome: quota.Granted}
		for _, part := range ask.Parts {
			grant := quota.Grant{
				Number: ask.ID, Units: part.Cost + p.ahead, Leased: p.ahead > 0, ValidNs: int64(10 * time.Second),
				Windows: []quota.Standing{{Used: 1}},
			}
			answer.Grants = append(answer.Grants, grant)
		}
		answers.Results = append(answers.Results, answer)
	}
	p.in.Message(p.after, answers.Append(nil))
}

// Requests that ask the quota service do not delay what a worker does once a second.
func TestAWorkerThatAsksOftenTicks(t *testing.T) {
	b := start(t, func(o *sim.Options) {
		o.Dial = func(_ sim.Call, in *sim.Inbox) (sim.Peer, error) { return prompt{in: in, after: time.Millisecond}, nil }
	})
	require.NoError(t,
		b.Configure(policy(`{"name":"r","scope":"cluster","key":[{"header":"x-user-id"}],"limits":["900/1h"],`+
			`"on_unavailable":"deny","lease":"off"}`)))
	pass := func(ms int) {
		for range ms {
			b.now += int64(time.Millisecond)
			b.TickDue()
		}
	}
	const requests, everyMs = 200, 20
	for range requests {
		x, err := b.Start(0, alice)
		require.NoError(t, err)
		require.True(t, x.Paused())
		pass(everyMs)
		res, err := x.Finish()
		require.NoError(t, err)
		require.Equal(t, 200, res.Status)
	}
	require.Greater(t, b.Metrics()["rule=.=r;.;rate_limit_allowed_total"], uint64(requests/2), "%v", b.Metrics())
}

// A request that asks for a new key makes exactly these host calls, even if the key evicts another
// one, and allocates no more than this.
func TestWhatAnAskCosts(t *testing.T) {
	const most, times = 18, 2000 // the table is full after the first thousand
	b := start(t, func(o *sim.Options) {
		o.Wasm = buildtest.Wasm(t, "sluice_variant")
		o.Dial = func(_ sim.Call, in *sim.Inbox) (sim.Peer, error) { return prompt{in: in}, nil }
	})
	require.NoError(t,
		b.Configure(policy(`{"name":"r","scope":"cluster","key":[{"header":"x-user-id"}],"limits":["100/1m"],`+
			`"on_unavailable":"deny","capacity":1024}`)))
	user := 0
	ask := func() {
		user++
		b.calls = nil
		x, err := b.Start(0, asks(fmt.Sprint("user-", user)))
		require.NoError(t, err)
		require.True(t, x.Paused())
		b.TickDue()
		res, err := x.Finish()
		require.NoError(t, err)
		require.Equal(t, 200, res.Status)
	}
	for range times {
		ask()
	}
	require.Equal(t, "header time get set_effective_context grpc_send "+
		"get_buffer_bytes get time get set set_effective_context time continue_stream set_effective_context",
		short.Replace(strings.Join(b.calls, " ")))
	before := b.mallocs(t)
	for range times {
		ask()
	}
	require.LessOrEqual(t, b.mallocs(t)-before, uint64(most*times))
}
