package races

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"slices"
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

// judge returns what is wrong at the end of an execution.
func (w *world) judge() error {
	for _, k := range w.workers {
		if len(k.waiting) > 0 {
			return fmt.Errorf("worker %d: %d requests are never decided", k.id, len(k.waiting))
		}
	}
	if err := w.judgeBlocks(); err != nil {
		return err
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
			if k.definition.Windows[i].Algorithm == limit.Block {
				continue
			}
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
				d.Windows = append(d.Windows, a.CountedKey.Windows[a.Rule.Finder.Order[i]])
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
	var answers quota.Results
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
	for _, c := range slices.Concat(spent, held(), blocks()) {
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
			require.Equal(t, c.blocks, c.blocked > 0, "requests of blocked keys")
		})
	}
	if *flagOnly == "" && !t.Failed() {
		t.Logf("%d executions of %d races of two proxies and a quota service: %d choices", executions,
			len(spent)+len(held())+len(blocks()), choices)
	}
}
