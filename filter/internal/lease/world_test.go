package lease_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// law checks what was admitted at the given instants, in their order.
type law struct {
	limits string
	holds  func(at []int64) bool
	// atOnce makes each answer arrive at once. Where nothing can be leased a request is
	// counted when it is granted, not when its answer has arrived.
	atOnce bool
}

var laws = []law{
	{`"40/1s"`, func(at []int64) bool {
		return mostIn(at, func(from int64) int64 { return from - from%second + second }) <= 40
	}, false},
	{`{"requests":40,"per":"1s","algorithm":"sliding_window_log"}`, withinAny(40, second), true},
	{`{"requests":40,"per":"12s","algorithm":"sliding_window_log"}`, withinAny(40, 12*second), false},
	{`{"requests":40,"per":"20s","algorithm":"token_bucket"}`, bucket(40, 20*second), false},
	{`{"requests":40,"per":"1s","algorithm":"token_bucket","burst":20}`, func(at []int64) bool {
		return withinBucket(at, 20, second/40)
	}, true},
	{`{"requests":40,"per":"1s","algorithm":"fixed_window_per_key"}`, withinAny(80, second), false},
	{`"40/1s",{"requests":60,"per":"12s","algorithm":"sliding_window_log"}`, withinAny(60, 12*second), false},
}

// mostIn is how many instants lie in one window, which begins where it likes and
// ends where end says.
func mostIn(at []int64, end func(from int64) int64) (most int) {
	for i := range at {
		n := 0
		for _, t := range at[i:] {
			if t < end(at[i]) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func withinAny(n int, period int64) func(at []int64) bool {
	return func(at []int64) bool { return mostIn(at, func(from int64) int64 { return from + period }) <= n }
}

func bucket(n, period int64) func(at []int64) bool {
	return func(at []int64) bool { return withinBucket(at, n, period/n) }
}

// withinBucket reports whether a bucket of so many tokens that gains one each
// gainNs was never overdrawn.
func withinBucket(at []int64, burst, gainNs int64) bool {
	level, last := burst*gainNs, int64(0)
	for i, t := range at {
		if i > 0 {
			level = min(level+t-last, burst*gainNs)
		}
		if level -= gainNs; level < 0 {
			return false
		}
		last = t
	}
	return true
}

var worlds = flag.Int("worlds", 20, "how many random worlds the limit has to hold in, for each algorithm")

// In a world of two proxies with two workers each, whose clocks are apart and whose
// messages are late, lost and cut off by chance, the limit holds.
func TestTheLimitHoldsWhateverHappens(t *testing.T) {
	for _, law := range laws {
		t.Run(law.limits, func(t *testing.T) {
			t.Parallel()
			most := 0
			for seed := range uint64(*worlds) {
				most = max(most, runWorld(t, law, seed))
			}
			require.Greater(t, most, 30, "the limit was never near")
		})
	}
}

func runWorld(t *testing.T, law law, seed uint64) (most int) {
	dice := rand.New(rand.NewPCG(seed, 1))
	lease := []string{`"auto"`, `"off"`, `7`}[dice.IntN(3)]
	rules := `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":[` + law.limits + `],"on_unavailable":"deny","lease":` + lease + `}`
	clock := 1000 * second
	proxies := []*hosttest.Proxy{hosttest.New(), hosttest.New()}
	apart := []int64{dice.Int64N(20 * second), -dice.Int64N(20 * second)}
	for i, p := range proxies {
		p.Clock = clock + apart[i]
	}
	s := hosttest.NewQuota(func() int64 { return clock })
	var workers []*worker
	for i := range 4 {
		workers = append(workers, newWorker(t, proxies[i/2], rules, uint32(seed)+uint32(i)))
	}
	admitted := map[string][]int64{}
	slow := 1 + dice.Int64N(40)
	for range 2000 {
		w := workers[dice.IntN(len(workers))]
		w.live(dice, s, law, func(step int64) {
			clock += step
			for i, p := range proxies {
				p.Clock = clock + apart[i]
			}
		}, slow)
		for context, allowed := range w.verdicts {
			if user, fresh := w.users[context]; fresh && allowed {
				admitted[user] = append(admitted[user], clock)
			}
			delete(w.users, context)
		}
	}
	for user, at := range admitted {
		require.True(t, law.holds(at), "seed %d: %s got too much", seed, user)
		most = max(most, len(at))
	}
	return most
}

// live lets something happen to the worker. pass makes time pass.
func (w *worker) live(dice *rand.Rand, s *service, law law, pass func(ns int64), slow int64) {
	open := w.stream != nil
	switch n := dice.IntN(20); {
	case n < 9:
		w.request([]string{"a", "b"}[dice.IntN(2)])
	case n < 12 && open && len(w.stream.Asks) > 0:
		if s.Serve(w.t, w.stream); law.atOnce && len(w.stream.Answers) > 0 {
			w.deliver()
		}
	case n < 15 && open && len(w.stream.Answers) > 0:
		w.deliver()
	case n == 15 && open && dice.IntN(8) == 0:
		w.stream = nil
		w.client.Closed(w.proxy.Clock)
	case n == 16 && dice.IntN(8) == 0:
		w.down = !w.down
	case n == 17:
		w.client.Forget(w.next)
	default:
		pass(dice.Int64N(slow * ms))
		w.tick()
	}
}
