package interleave_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim/interleave"
)

// faults are mistakes that a limiter of this kind can make, each planted in the
// source of this one.
var faults = []struct {
	buildtest.Fault
	race string // the scenario that finds it
	want string // part of the error
}{
	{buildtest.Fault{
		Name: "a missing key is created with cas 0", File: "shared/state/store.go",
		Old: "const CreateOnly uint32 = 0xFFFFFFFE", New: "const CreateOnly uint32 = 0",
	}, "create race of a page, fixed_window", "are admitted, not"},
	{buildtest.Fault{
		Name: "a refund ignores the generation", File: "shared/state/entry.go",
		Old: "if e.slot < 0 || e.page.recordGeneration(&t.layout, e.slot) != committed.generation {", New: "if e.slot < 0 {",
	}, "refund and reset, fixed_window", "a refund took the hit of another request"},
	{buildtest.Fault{
		Name: "eviction leaves no floor", File: "shared/state/evict.go",
		Old: "t.addToFloor(e, slot, last, at)", New: "",
	}, "full page, fixed_window", "eviction has refunded"},
	{buildtest.Fault{
		Name: "clean overwrites concurrent hits", File: "shared/state/operate.go",
		Old: "return changes, t.write(e)", New: "return changes, t.tables.store.Set(e.key[:], e.page, 0)",
	}, "clean, fixed_window", "are admitted, not"},
	{buildtest.Fault{
		Name: "a window goes back with a worker's clock", File: "shared/state/table.go",
		Old: "e.Now = max(now, last)", New: "e.Now = now",
	}, "window roll, fixed_window", "are admitted in the new window"},
	{buildtest.Fault{
		Name: "a lost compare-and-swap counts as won", File: "filter/internal/engine/attempt.go",
		Old: "case raced:\n\t\t\tif retries == maxRetries {", New: "case raced:\n\t\t\tif a.counted = true; a.counted {\n\t\t\t\treturn\n\t\t\t}\n\t\t\tif retries == maxRetries {",
	}, "create race of a page, fixed_window", "are admitted, not"},
	{buildtest.Fault{
		Name: "the fast path takes a lost compare-and-swap for won", File: "shared/state/fast.go",
		Old: "return t.tables.store.Set(e.key[:], b, e.cas), true", New: "t.tables.store.Set(e.key[:], b, e.cas)\n\treturn OK, true",
	}, "create race of a page, fixed_window", "are admitted, not"},
	{buildtest.Fault{
		Name: "on the fast path a window goes back with a worker's clock", File: "shared/state/fast.go",
		Old: "at := max(now, last)", New: "at := now",
	}, "window roll, fixed_window", "are admitted in the new window"},
	{buildtest.Fault{
		Name: "the fast path overlooks the floor", File: "shared/state/fast.go",
		Old: "if slot < 0 {", New: "if false {",
	}, "full page, fixed_window", "eviction has refunded"},
	{buildtest.Fault{
		Name: "a late denial refunds nothing", File: "filter/internal/engine/decide.go",
		Old: "attempts[i].refund(now)", New: "_ = attempts[i]",
	}, "refund, fixed_window", "counted"},
	{buildtest.Fault{
		Name: "the directory is written with cas 0", File: "shared/state/directory.go",
		Old: "t.store.Set(directoryKey, next, cas)", New: "t.store.Set(directoryKey, next, 0*cas)",
	}, "create race of two tables", "counted"},
	{buildtest.Fault{
		Name: "a changed list of windows starts anew", File: "shared/state/page.go",
		Old: "copy(out.record(to, slot), b.record(from, slot)[:recordHeadBytes])", New: "continue",
	}, "config change, a window more", "are admitted, not"},
}

// TestPlantedFaults: the exploration finds each planted fault, in the race that is
// there for it.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			i := slices.IndexFunc(scenarios(), func(c scenario) bool { return c.name == f.race })
			require.GreaterOrEqual(t, i, 0, "no race is named %q", f.race)
			r := newBench(t, buildtest.Plant(t, f.Fault)).explore(t, &scenarios()[i], interleave.Bounds{Max: 300}, nil)
			require.NotNil(t, r.Failure, "not found in %d interleavings", r.Executions)
			first, _, _ := strings.Cut(r.Failure.Error(), "\n")
			t.Logf("found by number %d of the interleavings: %s", r.Executions, first)
			require.Contains(t, first, f.want)
			found++
		})
	}
	buildtest.Figure(t, "%d of %d planted faults found", found, len(faults))
}
