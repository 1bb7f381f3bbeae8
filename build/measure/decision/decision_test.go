//go:build linux

package decision

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

var (
	rounds = flag.Int("rounds", 0,
		"how often each case is measured, each time in new Envoys; 0 = see in short that all works")
	wasm       = flag.String("wasm", built("sluice.wasm"), "path of the filter")
	against    = flag.String("against", "", "path of another build of the filter, which -wasm is measured against")
	ratelimit  = flag.String("ratelimit", "", "path of envoyproxy/ratelimit")
	inItsPlace = flag.String("front", "", "path of what is measured beside it; empty: sluice called ratelimit")
)

func built(name string) string { return filepath.Join(buildtest.Root(), "build", "out", name) }

// start starts a run, and says where.
func start(t *testing.T) *bench {
	b := &bench{
		wasm: *wasm, against: *against, ratelimit: *ratelimit, sluice: built("sluice"), front: *inItsPlace,
		pairs: 60, turn: 25 * time.Millisecond, warmUp: time.Second,
	}
	if *rounds == 0 {
		b.pairs = 3
		b.turn = 10 * time.Millisecond
		b.warmUp = 100 * time.Millisecond
	}
	b.start(t)
	binary, err := proc.Find()
	require.NoError(t, err)
	version, err := proc.Version(t.Context(), binary)
	require.NoError(t, err)
	fmt.Printf("Envoy %s on %d cores; rounds: %d.\n\n", version, len(b.cores), *rounds)
	return b
}

// short are the cases that are measured where no figures are asked for.
var short = map[string]bool{caseFloorFields: true, "local": true, loadOurs: true}

// In each round every case is measured, so that what changes slowly meets all.
func TestDecision(t *testing.T) {
	b, found := start(t), figures{}
	for round := range max(*rounds, 1) {
		for _, s := range subjects() {
			if *rounds == 0 && !short[s.name] || *against != "" && (s.policy == "" || s.floor || s.loads) && s.name != caseNone {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				v := b.visit(t, s)
				found[s.name] = append(found[s.name], v)
				fmt.Printf("%d %-16s base %6.2f µs, with it %6.2f, ratio %.3f; %.0f MB, blocked %.0f ms\n",
					round+1, s.name, v.baseUs, v.testUs, v.ratio, v.rss, v.blocked)
				require.Greater(t, v.rss, 1.0)
				if s.loads {
					require.Positive(t, v.blocked)
					require.Positive(t, v.grown)
				} else {
					require.Greater(t, v.baseUs, 1.0)
					require.Positive(t, v.ratio)
				}
			})
		}
	}
	require.NotEmpty(t, found, "no case has such a name")
	fmt.Printf("\n%s", found.tables())
	if *against == "" { // the bounds are of what is added to no filter
		fmt.Printf("\n%s", found.targets())
	}
}

func TestCluster(t *testing.T) {
	if *rounds == 0 {
		return // it takes envoyproxy/ratelimit
	}
	b, found := start(t), map[string]map[string][]turn{}
	for _, s := range shares() {
		t.Run(s.name, func(t *testing.T) { found[s.name] = b.share(t, s, *rounds) })
	}
	fronts := measuredFronts{}
	for _, c := range frontCases() {
		t.Run(c.name, func(t *testing.T) { fronts[c.name] = b.besideRateLimit(t, c, *rounds) })
	}
	require.NotZero(t, len(found)+len(fronts), "no case has such a name")
	fmt.Printf("\n%s\n%s\n%s", bars(found), fronts.table(), fronts.targets())
}

// Envoy accepts the configuration of every case. It reads no policy: those are read here.
func TestCases(t *testing.T) {
	binary, err := proc.Find()
	require.NoError(t, err)
	b := &bench{wasm: filepath.Join("testdata", "floor.wasm"), upstream: 1}
	valid := map[string]bool{}
	policies := []string{}
	for _, s := range subjects() {
		if s.policy != "" {
			policies = append(policies, s.policy)
		}
		// Those that differ in their policies alone are the same to Envoy.
		if kind := fmt.Sprint(s.filter, s.floor, s.direct, s.workers > 1, s.limiter); !valid[kind] {
			valid[kind] = true
			bootstrap := b.bootstrap(site{sides: b.sides(t, s), workers: s.workers, direct: s.direct, limiter: s.limiter},
				fmt.Sprintf(serviceCluster, "ratelimit", 1))
			require.NoError(t, proc.Validate(t.Context(), binary, []byte(bootstrap)), s.name)
		}
	}
	for _, c := range frontCases() {
		bootstrap := b.bootstrap(c.site(""), fmt.Sprintf(serviceCluster, "ratelimit", 1))
		require.NoError(t, proc.Validate(t.Context(), binary, []byte(bootstrap)), c.name)
	}
	for _, s := range shares() {
		policies = append(policies, leasedRule(s.limits), one(limits(s.limits)))
	}
	for _, text := range policies {
		doc, err := policy.ParseJSON([]byte(text))
		require.NoError(t, err, text)
		_, problems := policy.Read(doc)
		require.Empty(t, problems, text)
	}
}

// A bound is met, missed, or not measured: what was not measured is not met. What a side adds
// is the median of differences within rounds.
func TestTargets(t *testing.T) {
	f := figures{caseHeader: {{ratio: 1.3}, {ratio: 1.33}, {ratio: 1.9}}, caseFloor: {{ratio: 1.25}},
		loadOurs: {{blocked: 1301}}}
	for _, row := range []string{
		"one window, of no filter's | ≤ 0.330 | 0.330 | met |", "the same rule, of the floor's | ≤ 1.40 | 1.32 | met |",
		"by a new binary | ≤ 400 ms | 1301 ms | **missed** |", "with an upstream | ≤ 1.000 | – | not measured |",
		"at worst | ≤ 0 | 0 | met |",
	} {
		require.Contains(t, f.targets(), row)
	}
	require.NotContains(t, figures{}.targets()+bars(nil), "met |")
	turns := func(totals ...float64) (list []turn) {
		for _, us := range totals {
			list = append(list, turn{envoy: us - 3, service: 2, redis: 1, asks: 0.02})
		}
		return list
	}
	got := bars(map[string]map[string][]turn{
		"hot": {sideBare: turns(20, 30, 20), sideProxy: turns(30, 40, 30), sideLeased: turns(31, 42, 31.5)},
	})
	require.Contains(t, got, "of a `scope: proxy` rule's | ≤ 1.15 | 1.15 | met |", "11, 12, 11.5, of 10")
	require.Contains(t, got, "requests that ask | ≤ 2.00 % | 2.00 % | met |")
}
