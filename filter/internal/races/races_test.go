package races

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

var (
	flagMax    = flag.Int("races-max", 200, "maximum of executions to search in a scenario")
	flagRandom = flag.Int("races-random", 400, "random executions of a scenario after the search")
	flagSeed   = flag.Uint64("races-seed", 1, "seed of the random executions")
	flagOnly   = flag.String("races-only", "", "the one scenario to run")
)

// scenario is a small race.
type scenario struct {
	name    string
	rules   string
	start   int64 // time after the beginning of an hour
	before  [workers][]request
	rounds  int   // of before, 1 if 0
	pause   int64 // between before and scripts
	scripts [workers][]request
	times   []int64 // that may pass at any point
	faults  bool    // messages may be lost or repeated, and streams cut
	// keeps says that a window is open at the end, so that what it admitted can be
	// compared with what is counted.
	keeps bool
	// strands is how many units may stay counted although no request has spent them: a refund
	// may come when the stream that got the units has ended.
	strands int

	// Of rules that hold units until answers are known:

	slots  uint32                  // how many units some execution has to hold at once
	most   uint32                  // how many were
	quiet  int64                   // after this time nothing is held; 0 = quietNs
	prompt bool                    // time passes only if nothing else can happen
	fates  func(w *world) []action // what else may happen to workers and the service
}

// all returns scripts in which each worker gets n times the requests, in turn.
func all(n int, r ...request) (scripts [workers][]request) {
	for i := range scripts {
		for range n {
			scripts[i] = append(scripts[i], r[i%len(r)])
		}
	}
	return scripts
}

func clusterRule(name, header, limits string) string {
	return fmt.Sprintf(`{"name":%q,"scope":"cluster","key":[{"header":%q}],"missing_key":"skip","limits":[%s],`+
		`"on_unavailable":"deny"}`, name, header, limits)
}

var (
	a, b     = request{user: "a"}, request{user: "b"}
	at, bt   = request{user: "a", tenant: "t"}, request{user: "b", tenant: "t"}
	someTime = []int64{15 * ms, 120 * ms}
)

const (
	log20s    = `{"requests":40,"per":"20s","algorithm":"sliding_window_log"}`
	bucket1s  = `{"requests":40,"per":"1s","algorithm":"token_bucket","burst":20}`
	perKey    = `{"requests":40,"per":"1s","algorithm":"fixed_window_per_key"}`
	bucket20s = `{"requests":40,"per":"20s","algorithm":"token_bucket"}`
)

// spent are the races for units that a request spends when it is admitted.
var spent = []scenario{
	{
		name:    "hot key",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(8, a),
		times:   someTime,
		keeps:   true,
	},
	{
		name:    "hot key, messages lost",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(8, a),
		times:   someTime,
		keeps:   true,
		faults:  true,
	},
	{
		name:    "idle units",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(2, a),
		times:   []int64{6 * second, 11 * second},
		keeps:   true,
	},
	{
		name:    "idle units, a message twice",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(2, a),
		times:   []int64{6 * second, 11 * second},
		keeps:   true,
		faults:  true,
	},
	{
		name: "idle units of two keys", keeps: true, faults: true, before: all(4, a), rounds: 3, pause: 4500 * ms,
		scripts: all(8, b), times: []int64{500 * ms}, rules: clusterRule("r", "u", `"90/1h"`),
	},
	{
		name:    "a window ends",
		rules:   clusterRule("r", "u", `"40/1s"`),
		start:   700 * ms,
		before:  all(4, a),
		scripts: all(16, a),
		times:   []int64{20 * ms, 160 * ms},
		faults:  true,
	},
	{
		name:    "an hour ends",
		rules:   clusterRule("r", "u", `"40/1h"`),
		start:   hour - 11*second,
		before:  all(4, a),
		scripts: all(10, a),
		times:   []int64{ms, 6 * second},
		keeps:   true,
	},
	{
		name:    "log",
		rules:   clusterRule("r", "u", log20s),
		before:  all(1, a),
		rounds:  4,
		pause:   150 * ms,
		scripts: all(14, a),
		times:   []int64{20*second - 100*ms},
	},
	{
		name:    "bucket",
		rules:   clusterRule("r", "u", bucket20s),
		before:  all(5, a),
		scripts: all(14, a),
		times:   []int64{150 * ms, second},
	},
	{
		name:    "two windows",
		rules:   clusterRule("r", "u", `"20/1s","60/1h"`),
		start:   940 * ms,
		before:  all(3, a),
		scripts: all(12, a),
		times:   []int64{20 * ms, 55 * ms},
		faults:  true,
	},
	{
		name:    "group",
		rules:   clusterRule("r", "u", `"40/1h"`) + "," + clusterRule("q", "t", `"10/1h"`),
		before:  all(2, at, bt),
		scripts: all(4, at, bt),
		times:   someTime,
		keeps:   true,
		strands: 2,
	},
	{
		name:    "refund",
		keeps:   true,
		strands: 2,
		times:   someTime,
		before:  all(3, a),
		scripts: all(4, at),
		rules: clusterRule("r", "u", `"40/1h"`) +
			`,{"name":"q","key":[{"header":"t"}],"missing_key":"skip","limits":["3/1h"]}`,
	},
	{
		name: "a worker stands still", before: all(1, a), scripts: all(3, a), times: []int64{second, 30 * second},
		rules: `{"name":"r","key":[{"header":"u"}],"limits":[{"requests":4,"per":"20s","algorithm":"sliding_window_log"}]}`,
	},
	{
		name:    "per key",
		rules:   clusterRule("r", "u", perKey),
		before:  all(4, a),
		scripts: all(20, a),
		times:   []int64{20 * ms, 160 * ms, 900 * ms},
		faults:  true,
	},
	{
		name:    "small bucket",
		rules:   clusterRule("r", "u", bucket1s),
		before:  all(3, a),
		scripts: all(8, a),
		times:   []int64{15 * ms, 200 * ms},
		faults:  true,
	},
	{
		name: "nothing leased", keeps: true, faults: true, before: all(2, a), scripts: all(8, a, b), times: someTime,
		rules: strings.Replace(clusterRule("r", "u", `"20/1h"`), `"deny"`, `"deny","lease":"off"`, 1),
	},
	{
		name:    "two keys",
		rules:   clusterRule("r", "u", `"24/1h"`),
		before:  all(3, a, b),
		scripts: all(6, b, a),
		times:   someTime,
		keeps:   true,
		faults:  true,
	},
}

// judge returns what is wrong at the end of an execution.
func (w *world) judge() error {
	for _, k := range w.workers {
		if len(k.waiting) > 0 {
			return fmt.Errorf("worker %d: %d requests are never decided", k.id, len(k.waiting))
		}
	}
	for name, k := range w.keys {
		if k.holds() {
			if err := w.judgeHeld(name, k); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		hits := slices.DeleteFunc(slices.Clone(w.admitted), func(a admission) bool { return a.key != name })
		slices.SortFunc(hits, func(a, b admission) int { return cmp.Compare(a.latest, b.latest) })
		for i := range k.definition.Windows {
			if err := over(&k.definition.Windows[i], hits); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if !w.scenario.keeps || k.alone {
			continue
		}
		open := k.definition.Windows[0].End(w.now) - k.definition.Windows[0].PeriodNs
		least, most := 0, w.scenario.strands
		for _, hit := range hits {
			if hit.latest >= open {
				most++
			}
			if hit.earliest >= open {
				least++
			}
		}
		switch used := int(w.standings(k)[0].Used); {
		case used < least:
			return fmt.Errorf("%s: %d were admitted, %d are counted", name, least, used)
		case used > most && !w.lost:
			return fmt.Errorf("%s: of %d units that are counted, %d were spent: the rest is stranded", name, used,
				most-w.scenario.strands)
		}
	}
	return nil
}

// admitAlone records a hit that counts only in the worker's proxy.
func (k *worker) admitAlone(v *decide.Verdict) {
	for _, a := range v.Subjects {
		if a.Rule.Policy.Scope == policy.ScopeCluster {
			continue
		}
		name := fmt.Sprint("proxy ", k.id/2, ", rule ", a.Rule.Policy.Name, ", ", k.headers)
		if _, known := k.world.keys[name]; !known {
			var d quota.Definition
			for i := range a.Rule.Policy.Limits {
				w, _ := a.Window(i)
				d.Windows = append(d.Windows, *w)
			}
			k.world.keys[name] = key{d, [16]byte{}, true}
		}
		k.world.admitted = append(k.world.admitted, admission{name, k.readNs, k.world.now})
	}
}

// over reports whether a window has certainly admitted more than its limit: between two instants,
// there are more hits than it allows. The hits are in the order of their latest instants.
func over(w *limit.Window, hits []admission) error {
	for _, first := range hits {
		n, from := 0, first.earliest
		for _, hit := range hits {
			if hit.earliest < from {
				continue
			}
			most := int64(w.Limit)
			switch {
			case w.Algorithm == limit.TokenBucket:
				most = int64(w.Burst) + most*(hit.latest-from)/w.PeriodNs
			case w.Algorithm == limit.FixedWindow:
				most *= 1 + (w.End(hit.latest)-w.End(from))/w.PeriodNs
			case hit.latest-from >= w.PeriodNs:
				most = math.MaxInt64
			case w.Algorithm == limit.FixedWindowPerKey:
				most *= 2
			}
			if n++; int64(n) > most {
				return fmt.Errorf("more than %d are admitted in %d ms", most, (hit.latest-from)/ms)
			}
		}
	}
	return nil
}

// standings asks the service for the counts of a key.
func (w *world) standings(k key) []quota.Standing {
	st := w.service.Open(w.t)
	m := quota.Asks{
		Domain: w.workers[0].engine.Policy().Domain, Process: 1, Definitions: []quota.Definition{k.definition},
		Asks: []quota.Ask{{Parts: []quota.Part{{Definition: k.definition.ID, Key: k.hash, Inspect: true}}}},
	}
	require.NoError(w.t, st.Receive(m.Append(nil)))
	var answers quota.Grants
	require.NoError(w.t, answers.Decode(st.Next()))
	return answers.Results[0].Grants[0].Windows
}

// explore runs a scenario in many orders.
func explore(t testing.TB, c *scenario) *explorer {
	p := hosttest.Policy(t, c.rules)
	most, dice := *flagMax, *flagRandom
	if testing.Short() {
		most, dice = most/10, dice/10
	}
	x := &explorer{max: most, run: func(choices *chooser) error { return newWorld(t, c, p).execute(choices) }}
	x.search(nil, 1)
	x.search(nil, 2)
	x.random(dice, *flagSeed)
	return x
}

func TestRaces(t *testing.T) {
	executions, choices := 0, 0
	for _, c := range slices.Concat(spent, held()) {
		if *flagOnly != "" && *flagOnly != c.name {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			x := explore(t, &c)
			executions += x.executions
			choices += x.accesses
			t.Logf("%d executions, %d choices", x.executions, x.accesses)
			require.NoError(t, x.failure)
			require.Equal(t, c.slots, c.most, "units held at once")
		})
	}
	if *flagOnly == "" && !t.Failed() {
		t.Logf("%d executions of %d races of two proxies and a quota service: %d choices", executions,
			len(spent)+len(held()), choices)
	}
}
