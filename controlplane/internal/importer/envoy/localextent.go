package envoy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// extent says where a configuration of the local filter holds.
type extent struct {
	requests request.Selection // its own rate_limits and its default bucket are for these
	routes   map[*route]bool   // the rate_limits of these routes count, each for the requests of its route
}

// extentOfRoute is where the configuration of a route holds.
func extentOfRoute(each *route) extent {
	return extent{requests: each.selection, routes: map[*route]bool{each: true}}
}

// localFilters are the local filters of a listener.
type localFilters []envoyfile.Config

// extent is where the filters' configurations hold: not for the routes that have a configuration of their own, nor for
// those that switch a filter off.
func (list localFilters) extent(hosts []virtualHost) extent {
	e := extent{routes: map[*route]bool{}}
	for _, h := range hosts {
		for _, each := range h.routes {
			if list.areReplacedFor(each) {
				leaveOutRoute(&e.requests, each)
			} else {
				e.routes[each] = true
			}
		}
	}
	return e
}

// areReplacedFor reports whether a route has a configuration of its own, or switches one of the filters off.
func (list localFilters) areReplacedFor(each *route) bool {
	return slices.ContainsFunc(each.configs, isLocalFilter) || list.areOffFor(each)
}

// areOffFor reports whether a route switches one of the filters off.
func (list localFilters) areOffFor(each *route) bool {
	return slices.ContainsFunc(list, func(f envoyfile.Config) bool { return each.isOff(f.Name) })
}

// leaveOutRoute exempts the requests of a route, or says why it cannot.
func leaveOutRoute(s *request.Selection, each *route) {
	if len(each.selection.Match) == 0 {
		s.CannotMatch("they are those of routes without a configuration of their own")
		return
	}
	if len(each.selection.WhyOff) > 0 {
		s.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
	}
	isElsewhere := func(m request.Match) bool { return !s.HasExempt(m) }
	if slices.ContainsFunc(each.selection.Exempt, isElsewhere) {
		s.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
	}
	s.AddExempt(each.selection.Match)
}
