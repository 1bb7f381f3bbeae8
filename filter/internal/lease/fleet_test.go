package lease_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

var long = flag.Bool("long", false, "longer runs of fleets")

const (
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// situations are how demand comes and messages go.
var situations = []struct {
	name string
	set  func(l *load)
	used float64 // at least, of the limit
	lost bool    // messages are lost: the service may be silent for a while
}{
	{"even", func(l *load) { l.pattern = even }, 0.99, false},
	{"90-10", func(l *load) { l.pattern = ninetyTen }, 0.99, false},
	{"Zipf keys", func(l *load) { l.pattern, l.keys, l.perSecond, l.lastNs = even, 100, 3*l.perSecond, l.lastNs/4 }, 0.99, false},
	{"moving", func(l *load) { l.pattern = moving }, 0.99, false},
	{"bursts", func(l *load) { l.pattern = bursts }, 0.88, false},
	{"idle proxies", func(l *load) { l.pattern = idle }, 0.99, false},
	{"slow network", func(l *load) { l.pattern, l.tripNs = even, 30*ms }, 0.99, false},
	{"lost messages", func(l *load) { l.pattern, l.loss = even, 0.01 }, 0.8, true},
}

// loads have twice the demand that their limit admits. Long ones are more, and last longer.
func loads() []load {
	list := []load{
		{limit: "10/1s", perSecond: 20, lastNs: 30 * second},
		{limit: "100/1s", perSecond: 200, lastNs: 10 * second},
		{limit: "1000/1s", perSecond: 2000, lastNs: 3 * second},
		{limit: "10000/1s", perSecond: 20000, lastNs: second},
		{limit: "100/1m", perSecond: 3.4, lastNs: 10 * minute},
		{limit: "1000/1m", perSecond: 34, proxies: 100, lastNs: 2 * minute},
		{limit: "10000/1h", perSecond: 5.6, workers: 1, lastNs: hour},
		{limit: "10000/1d", perSecond: 0.23, workers: 1, lastNs: day},
	}
	if testing.Short() {
		return list[:1]
	}
	if !*long {
		return list
	}
	for i := range list {
		if list[i].lastNs < hour {
			list[i].lastNs *= 10
		}
	}
	return append(list, load{limit: "100/1d", perSecond: 0.0023, workers: 1, lastNs: day}, load{limit: "100000/1d", perSecond: 2.3, workers: 1, lastNs: day})
}

// run lets a fleet live through a load, and returns how much of the limit it used.
func (l load) run(t *testing.T) (*fleet, float64) {
	f := l.live(t)
	used, over := f.used()
	t.Logf("%s over %d proxies: %.2f %% used, %.3f asks a request, %.2f %% waited, p99 %.2f ms",
		f.limit, f.proxies, 100*used, f.asksEach(), 100*f.waited(), float64(f.waitP99())/1e6)
	require.LessOrEqual(t, over, 0, l.limit)
	if l.loss == 0 {
		require.Zero(t, f.alone, "decided without the service")
	}
	return f, used
}

// A fleet of three proxies of four workers, or of a hundred, uses the whole limit
// under twice the demand, and never more, however the demand is spread, from windows
// of a second to those of a day.
func TestAFleetUsesTheWholeLimit(t *testing.T) {
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, l := range loads() {
				s.set(&l)
				f, used := l.run(t)
				require.GreaterOrEqual(t, used, s.used, l.limit)
				if !s.lost {
					require.LessOrEqual(t, f.waitP99(), 4*f.tripNs, l.limit)
				}
			}
		})
	}
}

// Where the limit suffices, a busy key asks once in a hundred requests, also shortly
// before its window ends.
func TestAFleetBelowItsLimit(t *testing.T) {
	for _, p := range []pattern{even, ninetyTen, moving} {
		f, used := load{limit: "20000/1s", perSecond: 10000, workers: 1, lastNs: 3 * second, pattern: p}.run(t)
		require.Less(t, f.asksEach(), 0.01)
		require.Less(t, f.waited(), 0.01)
		require.Greater(t, used, 0.99)
	}
}

// Tenants whose tokens say limits of their own use them, and never more, though there are
// more numbers than a stream has room for definitions.
func TestAFleetWhoseRequestsSayTheirLimits(t *testing.T) {
	for _, l := range []load{{pattern: even}, {pattern: moving}, {pattern: even, lease: "off"}, {pattern: moving, loss: 0.01}} {
		l.limit, l.said, l.keys, l.perSecond, l.lastNs, l.workers, l.tripNs = "2/1s", 1, 3000, 4000, 3*second, 2, 2*ms
		_, used := l.run(t)
		require.Greater(t, used, map[bool]float64{true: 0.8, false: 0.98}[l.loss > 0])
	}
}
