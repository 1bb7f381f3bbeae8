package lease_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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
	// said says that requests say the limit, at most 40, and what holds for those admitted
	// that say n or less: the units of each were granted where no more than n were used.
	said func(n int64) func(at []int64) bool
}

var laws = []law{
	{limits: `"40/1s"`, holds: alignedTo(40)},
	{limits: `{"requests":40,"per":"1s","algorithm":"sliding_window_log"}`, holds: withinAny(40, second), atOnce: true},
	{limits: `{"requests":40,"per":"12s","algorithm":"sliding_window_log"}`, holds: withinAny(40, 12*second)},
	{limits: `{"requests":40,"per":"20s","algorithm":"token_bucket"}`, holds: bucket(40, 20*second)},
	{limits: `{"requests":40,"per":"1s","algorithm":"token_bucket","burst":20}`, atOnce: true, holds: func(at []int64) bool {
		return withinBucket(at, 20, second/40)
	}},
	{limits: `{"requests":40,"per":"1s","algorithm":"fixed_window_per_key"}`, holds: withinAny(80, second)},
	{limits: `"40/1s",{"requests":60,"per":"12s","algorithm":"sliding_window_log"}`, holds: withinAny(60, 12*second)},
	{limits: `{"requests":` + fromV + `,"per":"1s"}`, said: alignedTo},
	{limits: `{"requests":` + fromV + `,"per":"12s","algorithm":"sliding_window_log"}`, said: func(n int64) func([]int64) bool { return withinAny(int(n), 12*second) }},
	{limits: `{"requests":` + fromV + `,"per":"1s","algorithm":"fixed_window_per_key"}`, said: func(n int64) func([]int64) bool { return withinAny(int(2*n), second) }},
}

// fromV is a limit that the second header of a request says.
const fromV = `{"header":"v","trusted":true,"default":0,"max":40}`

// alignedTo holds where no window of a second has more than n.
func alignedTo(n int64) func(at []int64) bool {
	return func(at []int64) bool {
		return mostIn(at, func(from int64) int64 { return from - from%second + second }) <= int(n)
	}
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
		if law.said != nil {
			at = law.saying(t, admitted, user, seed)
		} else {
			require.True(t, law.holds(at), "seed %d: %s got too much", seed, user)
		}
		most = max(most, len(at))
	}
	return most
}

// saying checks what was admitted of a user's requests that say no more than this one. It
// returns when these were.
func (l *law) saying(t *testing.T, admitted map[string][]int64, user string, seed uint64) (at []int64) {
	name, said, _ := strings.Cut(user, " ")
	n, err := strconv.ParseInt(said, 10, 64)
	require.NoError(t, err)
	for other, instants := range admitted {
		otherName, otherSaid, _ := strings.Cut(other, " ")
		if m, _ := strconv.ParseInt(otherSaid, 10, 64); otherName == name && m <= n {
			at = append(at, instants...)
		}
	}
	slices.Sort(at)
	require.True(t, l.said(min(n, 40))(at), "seed %d: requests of %s that say %d or less got too much", seed, name, n)
	return at
}

// live lets something happen to the worker. pass makes time pass.
func (w *worker) live(dice *rand.Rand, s *service, law law, pass func(ns int64), slow int64) {
	open := w.stream != nil
	switch n := dice.IntN(20); {
	case n < 9:
		user := []string{"a", "b"}[dice.IntN(2)]
		if law.said != nil {
			user += " " + []string{"8", "20", "40", "1000"}[dice.IntN(4)]
		}
		w.request(user)
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
