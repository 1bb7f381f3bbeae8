package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

// greedy are clients that ask ten times a second for as long as they are let through. Each
// answer comes after a while and costs what costs says.
type greedy struct {
	proxy   *proxy
	engine  *Engine
	running []running
}

type running struct {
	hold  decide.Hold
	endNs int64
	cost  uint32
}

// minutes returns what the answers cost in each of n minutes.
func (g *greedy) minutes(n int, answers time.Duration, cost func() uint32) (costs []float64) {
	const step = int64(100 * time.Millisecond)
	costs = make([]float64, n)
	start := g.proxy.Clock
	for ; g.proxy.Clock < start+int64(n)*int64(time.Minute); g.proxy.Clock += step {
		now := g.proxy.Clock
		for len(g.running) > 0 && g.running[0].endNs <= now {
			r := &g.running[0]
			r.hold.Settle(r.cost, decide.ByAnswer, now)
			costs[(now-start)/int64(time.Minute)] += float64(r.cost)
			g.running = g.running[1:]
		}
		for {
			v := g.engine.Decide()
			if !v.Allowed {
				break
			}
			for _, h := range v.AppendHolds(nil) {
				g.running = append(g.running, running{h, now + int64(answers), cost()})
			}
		}
		if now/int64(time.Second) != (now-step)/int64(time.Second) {
			for i := range g.running {
				g.running[i].hold.Renew(now, now, g.engine.HeldNow())
			}
		}
		g.proxy.Calls = g.proxy.Calls[:0]
	}
	return costs
}

func sum(list []float64) (total float64) {
	for _, n := range list {
		total += n
	}
	return total
}

const perMinute = 1000

func newGreedy(t *testing.T, algorithm string, reserve int) *greedy {
	host := hosttest.New()
	host.Clock = 1_000_000_000_000_000_020 / 60_000_000_000 * 60_000_000_000
	return &greedy{proxy: host, engine: compileJSON(t, host, fmt.Sprintf(
		`{"name":"r","algorithm":%q,"limits":["%d/1m"],"cost":%d,"settle":{"to":{"header":"x-cost"},"max":4294967295}}`, algorithm, perMinute, reserve))}
}

// Debt is paid: answers that take 50 times what was held for them are admitted 50 limits at
// once, but from the next minute on hardly more than the limit, in an hour and in ten.
func TestDebtIsPaid(t *testing.T) {
	const reserve, taken = 10, 500
	for algorithm, most := range map[string]float64{"token_bucket": 1.1, "fixed_window": 1.7, "fixed_window_per_key": 1.7} {
		for _, answers := range []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, 70 * time.Second} {
			costs := newGreedy(t, algorithm, reserve).minutes(600, answers, func() uint32 { return taken })
			first := int(answers / time.Minute) // in which answers come
			rest := costs[first+1:]
			hour, hours := sum(rest[:59])/perMinute/59, sum(rest)/perMinute/float64(len(rest))
			t.Logf("%s, answers of %s: %.1f limits, then %.2f a minute in an hour, %.2f in ten", algorithm, answers, costs[first]/perMinute, hour, hours)
			require.LessOrEqual(t, hour, most)
			require.LessOrEqual(t, hours, most)
			require.GreaterOrEqual(t, hours, 0.8, "what is paid is to be had again")
		}
	}
}

// Little of a bucket's rate is lost to reserves: of ones ten times too high, with answers of
// five seconds, a tenth.
func TestRateBesideReserves(t *testing.T) {
	costs := newGreedy(t, "token_bucket", 100).minutes(60, 5*time.Second, func() uint32 { return 10 })
	used := sum(costs[1:]) / perMinute / 59
	t.Logf("%.3f of the rate", used)
	require.GreaterOrEqual(t, used, 0.9)
	require.LessOrEqual(t, used, 1.001)
}
