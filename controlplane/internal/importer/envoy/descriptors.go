package envoy

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ownLimits is what a filter says of the rate_limits of one route.
type ownLimits struct {
	isOff  bool        // it limits nothing there, and the rest does not matter
	limits []rateLimit // in place of the route's; none: the route's count
	vhost  vhostLimits
}

// vhostLimits is Envoy's vh_rate_limits: whether the limits of the virtual host count for a route as
// well. Both filters number it like this.
type vhostLimits int32

const (
	vhostIfAlone vhostLimits = iota // Envoy's OVERRIDE: only if the configuration and the route have none
	vhostAlways                     // INCLUDE
	vhostNever                      // IGNORE
)

// addsHost reports whether Envoy sends the host's rate_limits H for a route too, which has R or none. R is in the
// configuration of the filter for the route, or else in the route:
//
//	vh_rate_limits    include_vh_rate_limits    a route with R    a route without
//	OVERRIDE          false                     R                 H
//	OVERRIDE          true                      R and H           H
//	INCLUDE           either                    R and H           H
//	IGNORE            false                     R                 nothing
//	IGNORE            true                      R and H           H
func (own *ownLimits) addsHost(each *route, hasR bool) bool {
	return each.include || own.vhost == vhostAlways || own.vhost != vhostNever && !hasR
}

// routeDescriptors lists the descriptors that a filter of a stage has for the routes, with those of their virtual hosts
// where Envoy adds them. The function ownLimitsOf is what the filter says of a route.
func (r *reader) routeDescriptors(
	hosts []virtualHost, stage uint32, ownLimitsOf func(*route) ownLimits,
) (list []descriptor.Descriptor) {
	for i := range hosts {
		h := &hosts[i]
		var including []request.Selection // the routes for which the host's limits count
		for _, each := range h.routes {
			own := ownLimitsOf(each)
			if own.isOff {
				continue
			}
			limits := own.limits
			if len(limits) == 0 {
				limits = r.ofStage(stage, each.limits)
			}
			list = append(list, r.descriptorsOf(limits, each.selection)...)
			if own.addsHost(each, len(own.limits)+len(each.limits) > 0) {
				including = append(including, each.selection)
			}
		}
		if h.countsForAll(len(including)) {
			including = []request.Selection{h.selection} // one for all routes
		}
		for _, s := range including {
			list = append(list, r.descriptorsOf(r.ofStage(stage, h.limits), s)...)
		}
	}
	return list
}

// descriptorBound bounds the descriptors of all routes: each takes a kilobyte, and most make a rule.
type descriptorBound struct {
	count  int
	isOver bool // it is said, and no more are made
}

const maxDescriptors = 10 * policy.MaxRules

// descriptorsOf are the descriptors of a list of rate_limits, for the requests of a selection.
func (r *reader) descriptorsOf(limits []rateLimit, s request.Selection) (list []descriptor.Descriptor) {
	for _, l := range limits {
		switch {
		case r.made.isOver:
			return nil
		case r.made.count > maxDescriptors:
			r.made.isOver = true
			r.Fail(l.at, "the rate_limits before these make more than "+strconv.Itoa(maxDescriptors)+" descriptors, one for "+
				"each route and combination of headers that may be absent: import fewer routes at once")
			return nil
		}
		made := r.readRateLimit(l)
		r.made.count += len(made)
		for _, d := range made {
			d.NarrowTo(s)
			list = append(list, d)
		}
	}
	return list
}
