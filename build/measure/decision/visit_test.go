//go:build linux

package decision

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

const (
	slowRate = 2000.0 // requests a second while latency is measured
	slowTime = 750 * time.Millisecond
)

// visit is what one Envoy took. Base is the listener without the filter, test the one
// with it.
type visit struct {
	baseUs, testUs      float64 // CPU of Envoy for a request, medians of the turns
	ratio               float64 // median of test / base over pairs of successive turns
	serviceUs, redisUs  float64 // CPU of the other processes for a request
	base, test          outcome // at a rate that leaves Envoy idle most of the time
	rss, grown          float64 // MB, at the end, and more than before the filter was loaded
	bytesPerKey         float64
	over                float64 // admitted beyond the limit
	blocked, changeTook float64 // ms
}

// visit starts an Envoy and measures a case in it.
func (b *bench) visit(t testing.TB, s subject) (v visit) {
	if s.loads {
		return b.load(t, s)
	}
	f := b.run(t, site{sides: b.sides(t, s), envoys: 1, workers: max(s.workers, 1), direct: s.direct, limiter: s.limiter})
	e, keys := f.envoys[0], max(s.keys, 1)
	sides := []*clients{f.dial(t, "base", s.path, keys), f.dial(t, "test", s.path, keys)}
	if keys >= manyKeys { // each connection begins an eighth further and asks for an eighth
		before := allocated(t, e)
		sides[1].run(t, full(keys))
		v.bytesPerKey = (allocated(t, e) - before) / float64(keys)
	}
	step, perTurn := 250, 0
	if s.path != "" {
		step = 2 * connections
	}
	for _, side := range sides {
		for began := time.Now(); time.Since(began) < b.warmUp; {
			perTurn = max(connections, int(time.Duration(step)*b.turn/side.run(t, full(step)).took))
		}
	}
	// Each pair comes in the other order, so that what drifts tells on both alike.
	var turns [2][]turn
	var ratios []float64
	for i := range b.pairs {
		for j := range sides {
			side := j ^ i&1
			turns[side] = append(turns[side], f.turn(t, sides[side], full(perTurn)))
		}
		ratios = append(ratios, turns[1][i].envoy/turns[0][i].envoy)
	}
	v.ratio, v.baseUs = quantile(ratios, 0.5), median(turns[0], func(t turn) float64 { return t.envoy })
	v.testUs = median(turns[1], func(t turn) float64 { return t.envoy })
	v.serviceUs = median(turns[1], func(t turn) float64 { return t.service })
	v.redisUs = median(turns[1], func(t turn) float64 { return t.redis })
	if s.path == "" { // it could not answer so many
		v.base, v.test = sides[0].run(t, paced(slowRate, slowTime)), sides[1].run(t, paced(slowRate, slowTime))
	}
	if s.limit > 0 {
		v.over = float64(max(0, sides[1].admitted-s.limit))
	}
	// On a route that it has nothing to say to, another limiter would cost nothing.
	if s.proof != "" {
		stats, err := e.Stats(t.Context(), "^"+s.proof+"$")
		require.NoError(t, err)
		require.EqualValues(t, sides[1].admitted+sides[1].denied, stats[s.proof], s.proof)
	}
	v.rss = resident(t, e)
	return v
}

// sides are the two listeners of a case.
func (b *bench) sides(t testing.TB, s subject) []side {
	base, test := "", s.filter
	switch {
	case s.floor:
		test = wasmFilter(t, "floor", "", s.policy)
	case s.policy != "":
		test = wasmFilter(t, "sluice", b.wasm, s.policy)
		if s.base != "" {
			base = wasmFilter(t, "base", b.wasm, s.base)
		}
		if b.against != "" {
			base = wasmFilter(t, "against", b.against, s.policy)
		}
	}
	return []side{{"base", base}, {"test", test}}
}

func resident(t testing.TB, e *proc.Process) float64 {
	bytes, err := e.RSS()
	require.NoError(t, err)
	return float64(bytes) / 1e6
}

func allocated(t testing.TB, e *proc.Process) float64 {
	bytes, err := e.Memory(t.Context())
	require.NoError(t, err)
	return float64(bytes)
}

// rest is how long memory is given to come to rest.
const rest = 500 * time.Millisecond

// load starts an Envoy that reads its listeners from a file, gives it one with the filter
// while it serves, and then changes the policy. It asks the admin interface all the while,
// which the main thread alone answers.
func (b *bench) load(t testing.TB, s subject) (v visit) {
	dir := t.TempDir()
	wasm := b.wasm
	version := uint64(1)
	if s.floor {
		wasm = ""
	}
	give := func(listeners string) {
		next := filepath.Join(dir, "next.yaml") // Envoy watches for a file that takes another's place
		require.NoError(t, os.WriteFile(next,
			fmt.Appendf(nil, "{version_info: \"%d\", resources: [%s]}", version, listeners), 0o600))
		require.NoError(t, os.Rename(next, filepath.Join(dir, "lds.yaml")))
	}
	give("")
	e := b.startEnvoy(t, b.bootstrap(site{}, "")+
		fmt.Sprintf("dynamic_resources: {lds_config: {resource_api_version: V3, path_config_source: {path: %s/lds.yaml}}}\n",
			dir), s.workers)
	require.NoError(t, e.WaitReady(t.Context()))
	load := func(policy string) (longest time.Duration) {
		version++
		give(fmt.Sprintf(listener, `"@type": type.googleapis.com/envoy.config.listener.v3.Listener, `,
			"loaded", direct, wasmFilter(t, "", wasm, policy)))
		const success, rejected = "listener_manager.lds.update_success", "listener_manager.lds.update_rejected"
		for stats := map[string]uint64{}; stats[success] < version; {
			asked := time.Now()
			var err error
			stats, err = e.Stats(t.Context(), `^listener_manager\.lds\.update_(success|rejected)$`)
			longest = max(longest, time.Since(asked))
			require.NoError(t, err)
			require.Zero(t, stats[rejected], "Envoy refused the filter")
		}
		return longest
	}
	time.Sleep(rest)
	before := resident(t, e)
	v.blocked = load(s.policy).Seconds() * 1e3
	time.Sleep(rest)
	v.rss = resident(t, e)
	v.grown, v.changeTook = v.rss-before, math.NaN()
	if s.changed != "" {
		v.changeTook = load(s.changed).Seconds() * 1e3
	}
	return v
}

// figures are all that one run found: of each case a visit for each round.
type figures map[string][]visit

// targets is the table of all bounds of one Envoy.
func (f figures) targets() string {
	median := func(name string, figure func(visit) float64) float64 { return median(f[name], figure) }
	ratio := func(name string) float64 { return median(name, func(v visit) float64 { return v.ratio }) }
	beside := func(name, floor string) float64 { return (ratio(name) - 1) / (ratio(floor) - 1) }
	var over []float64
	for _, visits := range f {
		over = append(over, of(visits, 1, func(v visit) float64 { return v.over }))
	}
	return targetTable([]target{
		{"CPU added by a rule keyed by a header with one window, of no filter's", 0.33, "%.3f", ratio(caseHeader) - 1},
		{"CPU added by the same rule, of the floor's", 1.4, "%.2f", beside(caseHeader, caseFloor)},
		{"CPU added by the same rule with response headers, of their floor's", 1.5, "%.2f",
			beside(caseFields, caseFloorFields)},
		{"CPU added by three rules, of the floor's", 1.8, "%.2f", beside(caseThreeRules, caseFloor)},
		{"a rule with settle to the status, of the rule without", 1.3, "%.3f", ratio(caseSettled)},
		{"tokens of 500 streamed events, of no filter's CPU", 1.15, "%.3f", ratio(caseEvents)},
		{"tokens of 1 MB of JSON, of no filter's CPU", 1.2, "%.3f", ratio(caseJSON)},
		{"a denied request, of an allowed one, with an upstream", 1, "%.3f", ratio(caseDenied) / ratio(caseHeader)},
		{"a denied request, of an allowed one, Envoy answering both", 1, "%.3f",
			ratio(caseDirectDenied) / ratio(caseDirectAllowed)},
		{"memory added, four workers, empty table", 45, "%.0f MB",
			median(loadOurs, func(v visit) float64 { return v.grown })},
		{"main thread blocked by a new binary", 400, "%.0f ms", median(loadOurs, func(v visit) float64 { return v.blocked })},
		{"main thread blocked by a change of a policy of 10 rules", 30, "%.0f ms",
			median(loadOurs, func(v visit) float64 { return v.changeTook })},
		{"memory of a live key, one fixed window, table at its capacity", 40, "%.1f bytes",
			median(caseManyKeys, func(v visit) float64 { return v.bytesPerKey })},
		{"requests admitted over a limit, at worst", 0, "%.0f", quantile(over, 1)},
	})
}

// tables are those of all cases that were measured, and of what loading takes.
func (f figures) tables() string {
	var cases, loads []string
	for _, s := range subjects() {
		visits := f[s.name]
		if len(visits) == 0 {
			continue
		}
		median := func(figure func(visit) float64) float64 { return median(visits, figure) }
		if s.loads {
			blocked := func(v visit) float64 { return v.blocked }
			loads = append(loads, fmt.Sprintf("%s | %.0f (%.0f … %.0f) | %.0f | %.0f", s.title,
				median(blocked), of(visits, 0, blocked), of(visits, 1, blocked),
				median(func(v visit) float64 { return v.changeTook }), median(func(v visit) float64 { return v.grown })))
			continue
		}
		added := func(v visit) float64 { return v.ratio - 1 }
		cases = append(cases, fmt.Sprintf("%s | %+.2f (%+.2f … %+.2f) | %.1f | %.0f (%.0f) | %.0f (%.0f) | %.0f", s.title,
			median(added), of(visits, 0, added), of(visits, 1, added),
			median(func(v visit) float64 { return added(v) * v.baseUs }),
			median(func(v visit) float64 { return v.test.p50() }), median(func(v visit) float64 { return v.base.p50() }),
			median(func(v visit) float64 { return v.test.p99() }), median(func(v visit) float64 { return v.base.p99() }),
			median(func(v visit) float64 { return v.rss })))
	}
	text := table("case | CPU added, of no filter's | µs | p50, µs | p99, µs | RSS, MB", cases...) +
		"\n" + table("loaded | main thread blocked, ms | by a change of policy, ms | resident memory added, MB", loads...)
	if visits := f[caseService]; len(visits) > 0 {
		text += fmt.Sprintf("\nenvoyproxy/ratelimit: Envoy %.0f µs a request, the service %.0f µs, Redis %.0f µs.\n",
			median(visits, func(v visit) float64 { return v.testUs }),
			median(visits, func(v visit) float64 { return v.serviceUs }),
			median(visits, func(v visit) float64 { return v.redisUs }))
	}
	return text
}

// table is a table of Markdown. Its head and its rows are cells joined by " | ".
func table(head string, rows ...string) string {
	text := fmt.Sprintf("| %s |\n|%s\n", head, strings.Repeat("---|", strings.Count(head, " | ")+1))
	for _, row := range rows {
		text += "| " + row + " |\n"
	}
	return text
}

// target is a bound that the product is held to. A figure that was not measured is NaN.
type target struct {
	what     string
	bound    float64
	format   string
	measured float64
}

func targetTable(list []target) string {
	var rows []string
	for _, t := range list {
		measured, verdict := "–", "not measured"
		if !math.IsNaN(t.measured) {
			t.measured = math.Round(t.measured*1e3) / 1e3 // more cannot be told apart
			measured, verdict = fmt.Sprintf(t.format, t.measured), "**missed**"
			if t.measured <= t.bound {
				verdict = "met"
			}
		}
		rows = append(rows, fmt.Sprintf("%s | ≤ "+t.format+" | %s | %s", t.what, t.bound, measured, verdict))
	}
	return table("what | at most | measured | ", rows...)
}
