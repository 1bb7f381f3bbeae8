package performance

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/sample"
)

// Target is a bound that the filter is held to, and what the run has to say to
// it.
type Target struct {
	What     string
	Bound    float64
	Unit     string
	Measured float64
	Known    bool // the run measured it
}

// Met says whether the bound holds. What was not measured is not met.
func (t Target) Met() bool { return t.Known && t.Measured <= t.Bound }

func (t Target) verdict() string {
	switch {
	case !t.Known:
		return "not measured"
	case t.Met():
		return "met"
	}
	return "**missed**"
}

// Targets holds the run against all bounds.
func (r Run) Targets() []Target {
	share := func(name string) (float64, bool) {
		c, ok := r.find(name)
		if !ok {
			return 0, false
		}
		return c.added().Median, true
	}
	of := func(what string, bound float64, unit string, measured float64, known bool) Target {
		return Target{what, bound, unit, measured, known}
	}
	header, headerOK := share(Header)
	leased, leasedOK := share(Leased)
	floor, floorOK := share(Floor)
	denied, deniedOK := share(Denied)
	directAllowed, allowedOK := share(DirectAllowed)
	directDenied, directOK := share(DirectDenied)
	list := []Target{
		of("CPU added by a rule keyed by a header with one window, of no filter's", 0.33, "", header, headerOK),
		of("the same, leased, on a hot key", 0.22, "", leased, leasedOK),
		of("leased on a hot key, of what the floor adds", 1, "", leased/floor, leasedOK && floorOK),
		of("a denied request, of an allowed one, with an upstream", 1, "", (1+denied)/(1+header), deniedOK && headerOK),
		of("a denied request, of an allowed one, Envoy answering both", 1, "", (1+directDenied)/(1+directAllowed), directOK && allowedOK),
	}
	ours, oursOK := r.load(Ours)
	list = append(list,
		of("memory added, four workers, empty table", 95, "MB", mebibytes(ours.Grown)*(1<<20)/1e6, oursOK),
		of("main thread blocked by a new binary", 1300, "ms", sample.Median(ours.BlockedMs), oursOK),
		of("main thread blocked by a change of a policy of 10 rules", 30, "ms", sample.Median(ours.ChangedMs), oursOK && len(ours.ChangedMs) > 0))
	keys, keysOK := r.find(ManyKeys)
	perKey := 0.0
	if keysOK {
		perKey = keys.spread(func(v Visit) float64 { return v.BytesPerKey }).Median
	}
	over, visits := 0, 0
	for _, c := range r.Cases {
		for _, v := range c.Visits {
			over += v.Over
			visits++
		}
	}
	return append(list,
		of("memory of a live key, one fixed window, table at its capacity", 40, "bytes", perKey, keysOK),
		of("requests admitted over a limit, all cases", 0, "", float64(over), visits > 0))
}

// TargetTable is the table of targets.
func (r Run) TargetTable() string {
	var b strings.Builder
	b.WriteString("| what | at most | measured | |\n|---|---|---|---|\n")
	for _, t := range r.Targets() {
		measured := "–"
		if t.Known {
			measured = t.number(t.Measured)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", t.What, t.number(t.Bound), measured, t.verdict())
	}
	return b.String()
}

func (t Target) number(n float64) string {
	switch t.Unit {
	case "":
		if n == float64(int(n)) {
			return fmt.Sprintf("%.0f", n)
		}
		return fmt.Sprintf("%.3f", n)
	case "bytes":
		return fmt.Sprintf("%.1f bytes", n)
	}
	return fmt.Sprintf("%.0f %s", n, t.Unit)
}

func mebibytes(list []uint64) float64 {
	var all []float64
	for _, n := range list {
		all = append(all, float64(n)/(1<<20))
	}
	return sample.Median(all)
}
