package interleave_test

import (
	"flag"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim/interleave"
)

var (
	flagMax     = flag.Int("interleave-max", 1_600, "maximum of interleavings to search in a scenario; 0 = all")
	flagRandom  = flag.Int("interleave-random", 200, "random interleavings of a scenario that has more than the maximum")
	flagSeed    = flag.Uint64("interleave-seed", 1, "seed of the random interleavings")
	flagCase    = flag.String("interleave-case", "", "scenarios to run, a regular expression")
	flagChoices = flag.String("interleave-choices", "",
		"replay this interleaving of the scenario: the worker at each access, one digit each")
)

func TestInterleavings(t *testing.T) {
	t.Parallel()
	b := newBench(t, buildtest.Wasm(t))
	chosen, err := regexp.Compile(*flagCase)
	require.NoError(t, err)
	require.True(t, *flagChoices == "" || *flagCase != "",
		"-interleave-choices belongs to one scenario: name it with -interleave-case")
	var sum interleave.Result
	cases, exhaustive := 0, 0
	for _, c := range scenarios() {
		if !chosen.MatchString(c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := b.explore(t, &c, interleave.Bounds{Max: *flagMax, Random: *flagRandom, Seed: *flagSeed}, *flagChoices)
			if r.Failure != nil {
				t.Fatalf("%v\nto replay: go test ./envoy/sim/interleave -run TestInterleavings -interleave-case '^%s$' "+
					"-interleave-choices %s\nfound after %d interleavings, %d at random from seed %d",
					r.Failure, regexp.QuoteMeta(c.name), r.Failure.Choices, r.Executions, r.Random, *flagSeed)
			}
			if *flagChoices != "" {
				t.Logf("replayed %s: no fault, the outcome is %s", *flagChoices, b.outcome.String())
				cases++
				return
			}
			t.Logf("%d interleavings, all: %v, and %d random ones", r.Executions, r.Exhaustive, r.Random)
			cases++
			if r.Exhaustive {
				exhaustive++
			}
			sum.Executions += r.Executions
			sum.Random += r.Random
			sum.Accesses += r.Accesses
		})
	}
	require.Positive(t, cases, "no scenario matches %q", *flagCase)
	if *flagCase == "" && !t.Failed() {
		t.Logf("%d interleavings of %d races searched, %d races exhaustively, and %d random ones from seed %d: %d "+
			"accesses of the compiled filter",
			sum.Executions, cases, exhaustive, sum.Random, *flagSeed, sum.Accesses)
	}
}
