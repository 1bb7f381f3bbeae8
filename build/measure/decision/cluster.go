package decision

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"time"

	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// clusterTime is how long measuring a cluster may take.
const clusterTime = 20 * time.Minute

// cluster measures every case of a fleet, and how much of a limit it uses.
func (b *bench) cluster(ctx context.Context, which *regexp.Regexp) (err error) {
	ctx, cancel := context.WithTimeout(ctx, clusterTime)
	defer cancel()
	found := map[string]sharedCase{} // by name
	var used []usedLimit
	for _, s := range shares() {
		if !which.MatchString(s.name) {
			continue
		}
		if found[s.name], err = b.share(ctx, s); err != nil {
			return fmt.Errorf("measure %s: %w", s.name, err)
		}
	}
	if which.MatchString("used") {
		if used, err = b.demand(ctx); err != nil {
			return fmt.Errorf("measure used: %w", err)
		}
	}
	if len(found)+len(used) == 0 {
		return errors.New("no case has such a name")
	}
	fmt.Printf("\n%s\n%s", bars(found, used), sideTable(found))
	return nil
}

// sharedCase is the turns of each side of a case; those of one place were taken in one
// round.
type sharedCase map[string][]turn

func (t turn) total() float64 { return t.envoyUs + t.serviceUs + t.redisUs }

func (s sharedCase) median(side string, of func(turn) float64) float64 {
	var list []float64
	for _, t := range s[side] {
		list = append(list, of(t))
	}
	return sample.Median(list)
}

// above is how much a figure of a side is above that of another one: the median of the
// rounds.
func (s sharedCase) above(side, other string, of func(turn) float64) float64 {
	if len(s[side]) != len(s[other]) {
		return math.NaN()
	}
	var list []float64
	for i, t := range s[side] {
		list = append(list, of(t)-of(s[other][i]))
	}
	return sample.Median(list)
}

// added is what a side adds to a bare Envoy.
func (s sharedCase) added(side string) float64 { return s.above(side, sideBare, turn.total) }

// bars is the table of what limits over all Envoys are held to.
func bars(found map[string]sharedCase, used []usedLimit) string {
	beside := func(name string) float64 { s := found[name]; return s.added(sideLeased) / s.added(sideAsked) }
	const fresh = "every request a fresh key, CPU added over all processes, of envoyproxy/ratelimit's, "
	var list []target
	for _, one := range shares() {
		if one.draw != nil {
			continue
		}
		s := found[one.name]
		list = append(list,
			target{what: one.title + ": CPU added, of a `scope: proxy` rule's", bound: 1.15, format: "%.2f", measured: s.added(sideLeased) / s.added(sideProxy)},
			target{what: "the same: requests that ask", bound: 2, format: "%.2f %%", measured: 100 * s.median(sideLeased, func(t turn) float64 { return t.asks })},
			target{what: "the same: p99 above it", bound: 0.1, format: "%.3f ms", measured: s.above(sideLeased, sideProxy, func(t turn) float64 { return t.p99 }) / 1e3})
	}
	list = append(list,
		target{what: fresh + "at low load", bound: 0.75, format: "%.2f", measured: beside(caseFresh)},
		target{what: fresh + "saturated", bound: 0.6, format: "%.2f", measured: beside(caseSaturated)},
		target{what: "10,000 clients (Zipf 1.1), 100/min each, 2,000/s: the same", bound: 0.5, format: "%.2f", measured: beside(caseClients)})
	for _, u := range used {
		list = append(list, target{
			what:  fmt.Sprintf("limit used, %s, %s, asked for %.2f times", u.limit, u.pattern, u.asked),
			bound: 99, format: "%.1f %%", measured: 100 * u.used / min(u.asked, 1), atLeast: true,
		})
	}
	return targetTable(list)
}

// sideTitles are all sides, in the order of the table.
var sideTitles = []struct{ name, title string }{
	{sideBare, "no filter"}, {sideAgain, "no filter, again"}, {sideProxy, "`scope: proxy`"},
	{sideAsked, "envoyproxy/ratelimit and Redis"}, {sideLeased, "`scope: cluster`"},
}

// sideTable is the table of all sides of all cases.
func sideTable(found map[string]sharedCase) string {
	var rows []string
	for _, c := range shares() {
		s := found[c.name]
		for _, side := range sideTitles {
			if len(s[side.name]) == 0 {
				continue
			}
			m := func(of func(turn) float64) float64 { return s.median(side.name, of) }
			rows = append(rows, fmt.Sprintf("%s | %s | %.0f | %.1f | %.1f | %.1f | %+.1f | %.0f | %.0f | %.1f | %.2f", c.title, side.title,
				m(func(t turn) float64 { return t.rate }), m(func(t turn) float64 { return t.envoyUs }), m(func(t turn) float64 { return t.serviceUs }),
				m(func(t turn) float64 { return t.redisUs }), s.added(side.name), m(func(t turn) float64 { return t.p50 }), m(func(t turn) float64 { return t.p99 }),
				100*m(func(t turn) float64 { return t.denied }), 100*m(func(t turn) float64 { return t.asks })))
		}
	}
	return table("case | | reached a second | Envoys, µs | services, µs | Redis, µs | added, µs | p50, µs | p99, µs | denied, % | asks, %", rows...)
}
