package main_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/e2e/attack"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

var attackKeys = flag.Int("attack-keys", 12_000, "invented keys of the largest attack on the simulator")

const (
	attackLimit  = 20
	attackWindow = time.Hour
)

// attacked are the rules under attack.
var attacked = []struct{ name, rule string }{
	{"aligned", `"limits":["20/1h"]`},
	{"per key", `"limits":["20/1h"],"algorithm":"fixed_window_per_key"`},
	{"log", `"limits":["20/1h"],"algorithm":"sliding_window_log"`},
	{"sliding counter", `"limits":["20/1h"],"algorithm":"sliding_window_counter"`},
	{"token bucket", `"limits":["20/1000h"],"algorithm":"token_bucket"`},
}

// A flood of invented keys, one hit each, comes in a hundredth of a window. Memory
// stays within the table, no client is admitted beyond its limit, and after the
// window every client has its whole limit again.
func TestCardinalityAttack(t *testing.T) {
	capacity := min(*attackKeys/100, 16_384)
	for _, c := range attacked {
		t.Run(c.name, func(t *testing.T) {
			floods := []int{capacity, 10 * capacity, 100 * capacity}
			if c.name == "aligned" && *attackKeys > 100*capacity {
				floods = append(floods, *attackKeys)
			}
			for _, flood := range floods {
				b := attackedBench(t, capacity, c.rule)
				l := attack.NewList(attack.Plan{Flood: flood, Limit: attackLimit, Honest: 100, Cheaters: 20, Bursts: 10})
				o, full, peak := b.under(t, l, int64(attackWindow)/100/int64(l.Len()))
				count := func(metric string) uint64 { return b.Metrics()["rule=.=r;.;rate_limit_"+metric+"_total"] }
				denied := count("floor_denied")
				t.Logf("%d keys, capacity %d: shared data %d bytes after a tenth and at most %d; evicted %d",
					flood, capacity, full, peak, count("evicted"))
				t.Logf("%.1f %% of honest requests denied, a cheater admitted %d of %d times; floor_denied %d of %d denials, "+
					"%d of them of invented keys and %d of honest clients",
					o.FalselyDenied(), o.CheaterMax, attackLimit, denied, count("denied"), o.FloodDenied, o.HonestDenied)
				require.Zero(t, o.OverLimit)
				require.GreaterOrEqual(t, denied, uint64(o.FloodDenied))
				if flood >= 100*capacity {
					require.Equal(t, full, peak, "all pages exist after the first tenth")
				}
				for name, n := range b.Metrics() {
					require.False(t, strings.HasPrefix(name, "rate_limit_errors"), "%s %d", name, n)
				}

				b.now += 1001 * int64(attackWindow)
				for i := range 100 {
					for range attackLimit {
						require.Equal(t, 200, b.serve(t, i%2, asks(fmt.Sprint("honest-", i))).Status)
					}
				}
				b.Close()
			}
		})
	}
}

// What an attack over three windows costs honest clients. In windows per key and in sliding ones,
// the hits that a key starts with count longer. A long attack also measures larger ones.
func TestCardinalityAttackOfThreeWindows(t *testing.T) {
	const windows = 3
	capacity := min(max(*attackKeys/1000, 150), 2000)
	larger := []int{1, 10, 100}
	if *attackKeys < 100_000 {
		larger = larger[:1]
	}
	for _, c := range attacked[:3] {
		t.Run(c.name, func(t *testing.T) {
			for _, times := range larger {
				b := attackedBench(t, capacity, c.rule)
				l := attack.NewList(attack.Plan{
					Flood:   windows * times * capacity,
					Windows: windows,
					Limit:   attackLimit,
					Honest:  capacity / 4,
				})
				o, _, _ := b.under(t, l, windows*int64(attackWindow)/int64(l.Len()))
				t.Logf("%d x capacity %d a window: %.1f %% of honest requests denied", times, capacity, o.FalselyDenied())
				if times == 1 {
					require.Less(t, o.FalselyDenied(), 1.0)
				}
				b.Close()
			}
		})
	}
}

// attackedBench returns a proxy at the beginning of a window.
func attackedBench(t *testing.T, capacity int, rule string) *bench {
	t.Helper()
	b := start(t, func(o *sim.Options) { o.Workers, o.OnCall = 2, nil })
	b.now -= b.now % int64(attackWindow)
	require.NoError(t,
		b.Configure(policy(fmt.Sprintf(`{"name":"r","key":[{"header":"x-user-id"}],"capacity":%d,%s}`, capacity, rule))))
	return b
}

// under serves an attack, a request every stepNs. It returns the outcome, the bytes
// of shared data after a tenth of the attack, and their maximum.
func (b *bench) under(t *testing.T, l *attack.List, stepNs int64) (o attack.Outcome, full, peak int) {
	t.Helper()
	o = l.Judge(func(i int) bool {
		b.now += stepNs
		res, err := b.Serve(i%b.Workers(), asks(l.Key(i)))
		if err != nil || (res.Status != 200 && res.Status != 429) {
			t.Fatalf("request %d: %v %v", i, res, err)
		}
		if i%(1+l.Len()/100) == 0 || i == l.Len()-1 {
			peak = max(peak, b.Shared().Bytes())
			if i <= l.Len()/10 {
				full = peak
			}
		}
		return res.Status == 200
	})
	b.tick(t)
	return o, full, peak
}

func asks(user string) *sim.Request {
	return &sim.Request{Headers: [][2]string{{"x-user-id", user}}}
}
