package interleave_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim/interleave"
)

// faults are mistakes that a limiter of this kind can make. One copy of the filter
// has them all.
var faults = []struct {
	name string
	id   string
	edit buildtest.Edit
	race string // the scenario that finds it
	want string // part of the error
}{
	{"a missing key is created with cas 0", "create", buildtest.Edit{
		File: "shared/state/store.go",
		Old:  "const CreateOnly uint32 = 0xFFFFFFFE", New: `var CreateOnly = pick[uint32]("create", 0, 0xFFFFFFFE)`,
	}, "create race of a page, fixed_window", "are admitted, not"},
	{"a refund ignores the generation", "generation", buildtest.Edit{
		File: "shared/state/entry.go",
		Old:  "if e.slot < 0 || e.page.recordGeneration", New: `if e.slot < 0 || planted != "generation" && e.page.recordGeneration`,
	}, "refund and reset, fixed_window", "a refund took the hit of another request"},
	{"eviction leaves no floor", "floor", buildtest.Edit{
		File: "shared/state/evict.go",
		Old:  "t.addToFloor(e, slot, last, at)", New: `if planted != "floor" { t.addToFloor(e, slot, last, at) }`,
	}, "full page, fixed_window", "eviction has refunded"},
	{"clean overwrites concurrent hits", "clean", buildtest.Edit{
		File: "shared/state/operate.go",
		Old:  "return changes, t.write(e)",
		New:  `if planted == "clean" { return changes, t.tables.store.Set(e.key[:], e.page, 0) }; return changes, t.write(e)`,
	}, "clean, fixed_window", "are admitted, not"},
	{"a window goes back with a worker's clock", "back", buildtest.Edit{
		File: "shared/state/table.go",
		Old:  "e.Now = max(e.CallerNs, last)", New: `e.Now = pick("back", e.CallerNs, max(e.CallerNs, last))`,
	}, "window roll, fixed_window", "are admitted in the new window"},
	{"a lost compare-and-swap counts as won", "won", buildtest.Edit{
		File: "filter/internal/decide/subject.go",
		Old:  "case o == Taken:", New: `case o == Taken || planted == "won" && o == Raced:`,
	}, "create race of a page, fixed_window", "are admitted, not"},
	{"a late denial refunds nothing", "refund", buildtest.Edit{
		File: "filter/internal/decide/decide.go",
		Old:  "before.refund(now)", New: `if planted != "refund" { before.refund(now) }`,
	}, "refund, fixed_window", "counted"},
	{"the directory is written with cas 0", "directory", buildtest.Edit{
		File: "shared/state/store.go",
		Old:  "s.Set(key, next, cas)", New: `s.Set(key, next, pick("directory", 0, cas))`,
	}, "create race of two tables", "counted"},
	{"a changed list of windows starts anew", "anew", buildtest.Edit{
		File: "shared/state/page.go",
		Old:  "copy(out.record(to, slot), b.record(from, slot)[:recordHeadBytes])",
		New:  `if planted == "anew" { continue }; copy(out.record(to, slot), b.record(from, slot)[:recordHeadBytes])`,
	}, "config change, a window more", "are admitted, not"},
}

// TestPlantedFaults: the exploration finds each planted fault, in the race that is
// there for it.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	var edits []buildtest.Edit
	for _, f := range faults {
		edits = append(edits, f.edit)
	}
	wasm, found := buildtest.Plant(t, edits...), 0
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			i := slices.IndexFunc(scenarios(), func(c scenario) bool { return c.name == f.race })
			require.GreaterOrEqual(t, i, 0, "no race is named %q", f.race)
			b := newBench(t, wasm, buildtest.ChooseFault+"="+f.id)
			r := b.explore(t, &scenarios()[i], interleave.Bounds{Max: 300}, nil)
			require.NotNil(t, r.Failure, "not found in %d interleavings", r.Executions)
			first, _, _ := strings.Cut(r.Failure.Error(), "\n")
			t.Logf("found by number %d of the interleavings: %s", r.Executions, first)
			require.Contains(t, first, f.want)
			found++
		})
	}
	t.Logf("%d of %d planted faults found", found, len(faults))
}
