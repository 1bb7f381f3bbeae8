package main

import (
	"strconv"
	"time"
)

// part is one long form of a test: go test with more of everything.
type part struct {
	name string
	args []string
}

// fuzzed are the fuzz targets, each in the package it is in.
var fuzzed = []struct{ target, dir string }{
	{"FuzzDecide", "./filter/internal/engine"},
	{"FuzzFast", "./filter/internal/engine"},
	{"FuzzHeaders", "./filter/internal/describe"},
	{"FuzzMetadata", "./filter/internal/request"},
	{"FuzzMatch", "./shared/automaton"},
	{"FuzzRead", "./shared/policy"},
	{"FuzzJSON", "./shared/policy"},
	{"FuzzLimitText", "./shared/policy"},
	{"FuzzResponseBody", "./shared/policy"},
	{"FuzzStart", "./shared/limit"},
	{"FuzzYAML", "./controlplane/internal/policyfile"},
	{"FuzzLines", "./controlplane/internal/accesslog"},
	{"FuzzImport", "./controlplane/internal/importer"},
	{"FuzzNormalize", "./envoy/proxy"},
	{"FuzzCut", "./controlplane/internal/printable"},
	{"FuzzRequest", "./controlplane/internal/xds"},
	{"FuzzPairs", "./envoy/sim"},
	{"FuzzAsks", "./shared/quota"},
	{"FuzzAnswers", "./shared/quota"},
	{"FuzzValue", "./controlplane/internal/quota"},
}

// parts are what about so many minutes suffice for, on two processors that do
// nothing else: 30 are the full forms. What fails of the random tests prints the
// seed it failed at.
func parts(minutes int, seed uint64) []part {
	n := func(perMinute int) string { return strconv.Itoa(perMinute * minutes) }
	from := strconv.FormatUint(seed, 10)
	list := []part{
		{"floor", []string{"./shared/state", "-run", "^TestEvictionNeverRefunds$", "-floor-runs", n(20_000), "-floor-seed", from}},
		{"model", []string{"./shared/limit", "-run", "^TestAgainstTheModel$", "-model-sequences", n(20_000), "-model-seed", from}},
		{"reference", []string{"./shared/limit", "-run", "^TestThe", "-reference-courses", n(3_000)}},
		{"keyed", []string{"./shared/keyed", "-run", "^TestLimiterIsTheArithmetic$", "-property-limiters", n(300), "-property-seed", from}},
		{"interleavings", []string{"./envoy/sim/interleave", "-run", "^TestInterleavings$", "-interleave-max", n(20_000), "-interleave-random", n(5_000), "-interleave-seed", from}},
		{"worlds", []string{"./filter/internal/ask", "-run", "^TestTheLimitHoldsWhateverHappens$", "-worlds", n(40)}},
		{"races", []string{"./filter/internal/races", "-run", "^TestRaces$", "-races-max", n(2_000), "-races-random", n(2_000), "-races-seed", from}},
		{"cluster-exact", []string{"./controlplane/internal/simulate", "-run", "^TestWithoutALeaseACountIsOne$", "-cluster-lines", n(3_400)}},
		{"cluster-policies", []string{"./controlplane/internal/simulate", "-run", "^TestRandomRulesWithoutALease$", "-cluster-policies", n(20)}},
		{"cluster-leases", []string{"./controlplane/internal/simulate", "-run", "^TestLeasesStayWithinTheLimit$", "-cluster-lines", n(8_400)}},
		{"faults", []string{"./e2e", "-run", "^TestFaults$", "-fault-runs", strconv.Itoa(min(max(1, minutes/10), 3))}},
		{"waiting", []string{"./e2e", "-run", "^TestWaiting$", "-fault-runs", "1"}},
		{"quota-keys", []string{"./controlplane/internal/quota/redisstore", "-run", "^TestFreshKeys$", "-quota-keys", n(333_334)}},
		{"replay", []string{"./controlplane/internal/replay", "-run", "^TestReplayOfADay$", "-replay-lines", n(333_334), "-replay-clients", n(33_334)}},
		{"attack-sim", []string{"./filter", "-run", "^TestCardinalityAttack", "-attack-keys", n(333_334)}},
		{"attack-envoy", []string{"./e2e", "-run", "^TestCardinalityAttack$", "-attack-capacity", strconv.Itoa(min(16_384, 547*minutes))}},
		{"flood", []string{"./e2e", "-run", "^TestMoreKeysThanCapacity$", "-flood-keys", n(33_334)}},
		{"fresh", []string{"./e2e", "-run", "^TestFreshKeys$", "-fresh-keys", n(1_000)}},
		{"renames", []string{"./e2e", "-run", "^TestRenames$", "-renames", n(34)}},
		{"traffic", []string{"./e2e", "-run", "^TestSoak$", "-soak-traffic", (time.Duration(minutes) * 8 * time.Second).String()}},
	}
	for _, f := range fuzzed {
		// An input that is interesting is made smaller by five tries, not for a minute.
		list = append(list, part{f.target, []string{
			f.dir, "-run", "^$", "-fuzz", "^" + f.target + "$", "-fuzzminimizetime", "5x",
			"-fuzztime", (time.Duration(minutes) * 2 * time.Second).String(),
		}})
	}
	return list
}
