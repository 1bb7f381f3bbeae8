package envoy

import (
	"fmt"
	"slices"
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// sender is a filter as it sends descriptors: by rate_limits of its own, or else by those of routes and their virtual
// hosts.
type sender struct {
	own     []rateLimit
	stage   uint32                // of the rate_limits of routes and hosts that are for it
	byRoute map[*hostRoute]choice // without the routes for which it sends nothing
	works   filterReach
}

// choice says by which rate_limits a filter sends for a route.
type choice struct {
	alone []rateLimit     // those of the route's configuration for the filter. If it has any, no others count
	vhost vhostRateLimits // else the filter's own count, or those of the route, and perhaps its host
}

// choiceOn is by which rate_limits the filter sends for a route. It is not ok if it sends nothing: it does not work
// there, or the route answers by itself.
func (f sender) choiceOn(route *hostRoute) (c choice, ok bool) {
	c, ok = f.byRoute[route]
	return c, ok && !route.answers
}

// vhostRateLimits is Envoy's vh_rate_limits: whether the rate_limits of the virtual host count for a route as
// well. Both filters number it like this.
type vhostRateLimits int32

const (
	vhostIfAlone vhostRateLimits = iota // Envoy's OVERRIDE: only if the route has none
	vhostAlways                         // INCLUDE
	vhostNever                          // IGNORE
)

// addsHost reports whether Envoy sends the host's rate_limits H for a route too, which has its own R or none:
//
//	vh_rate_limits    include_vh_rate_limits    a route with R    a route without
//	OVERRIDE          false                     R                 H
//	OVERRIDE          true                      R and H           H
//	INCLUDE           either                    R and H           H
//	IGNORE            false                     R                 nothing
//	IGNORE            true                      R and H           H
func (c choice) addsHost(route *hostRoute) bool {
	return route.include || c.vhost == vhostAlways || c.vhost == vhostIfAlone && len(route.rateLimits) == 0
}

// routeDescriptors lists the descriptors that a filter sends for the routes of the hosts. No filter sends any for a
// route that answers by itself, nor for requests of no route.
//
//	for a route                            the filter sends by
//	whose configuration has rate_limits    these alone
//	others, if the filter has its own      its own alone
//	others                                 those of the route, and those of its virtual host if it addsHost
func (r *reader) routeDescriptors(hosts []virtualHost, f sender) []descriptor.Descriptor {
	if len(f.own) > 0 {
		return r.descriptorsOfOwn(hosts, f)
	}
	return r.descriptorsOfRoutes(hosts, f)
}

// descriptorsOfOwn is routeDescriptors of a filter with rate_limits of its own.
func (r *reader) descriptorsOfOwn(hosts []virtualHost, f sender) (list []descriptor.Descriptor) {
	if f.sendsOwnForAll(hosts) {
		return r.descriptorsOf(f.own, request.Selection{})
	}
	for i := range hosts {
		var byOwn []*hostRoute // for which it sends by its own
		for _, route := range hosts[i].routes {
			switch c, sends := f.choiceOn(route); {
			case !sends:
			case len(c.alone) > 0:
				list = append(list, r.descriptorsOf(c.alone, route.selection)...)
			default:
				byOwn = append(byOwn, route)
			}
		}
		for _, requests := range hosts[i].requestsOf(byOwn) {
			list = append(list, r.descriptorsOf(f.own, requests)...)
		}
	}
	return list
}

// descriptorsOfRoutes is routeDescriptors of a filter without any.
func (r *reader) descriptorsOfRoutes(hosts []virtualHost, f sender) (list []descriptor.Descriptor) {
	for i := range hosts {
		var byHost []*hostRoute // for which it sends by those of the host
		for _, route := range hosts[i].routes {
			switch c, sends := f.choiceOn(route); {
			case !sends:
			case len(c.alone) > 0:
				list = append(list, r.descriptorsOf(c.alone, route.selection)...)
			default:
				list = append(list, r.descriptorsOf(r.ofStage(f.stage, route.rateLimits), route.selection)...)
				if c.addsHost(route) {
					byHost = append(byHost, route)
				}
			}
		}
		for _, requests := range hosts[i].requestsOf(byHost) {
			list = append(list, r.descriptorsOf(r.ofStage(f.stage, hosts[i].rateLimits), requests)...)
		}
	}
	return list
}

// sendsOwnForAll reports whether the filter sends by its own rate_limits for all requests: each comes to a route, and
// none has others. It also does where the routes are not in the files, or a matcher chooses them, unless these must
// enable the filter.
func (f sender) sendsOwnForAll(hosts []virtualHost) bool {
	hasOthers := func(route *hostRoute) bool {
		c, sends := f.choiceOn(route)
		return !sends || len(c.alone) > 0
	}
	isDefault := func(h virtualHost) bool { return h.isDefault }
	isMissing := func(h virtualHost) bool {
		sendsForMatcher := h.hasMatcher && f.works != whereEnabled
		return !h.takesAll && !sendsForMatcher || slices.ContainsFunc(h.routes, hasOthers)
	}
	return len(hosts) == 0 || slices.ContainsFunc(hosts, isDefault) && !slices.ContainsFunc(hosts, isMissing)
}

// maxDescriptors bounds the descriptors of all routes: each takes a kilobyte, and most make a rule.
const maxDescriptors = 10 * policy.MaxRules

// descriptorsOf are the descriptors of a list of rate_limits, for the requests of a selection.
func (r *reader) descriptorsOf(rateLimits []rateLimit, s request.Selection) (list []descriptor.Descriptor) {
	for _, l := range rateLimits {
		switch {
		case r.hasTooMany:
			return nil
		case r.descriptors > maxDescriptors:
			r.hasTooMany = true
			r.Fail(l.at, "the rate_limits before these make more than "+strconv.Itoa(maxDescriptors)+" descriptors, one for "+
				"each route and combination of headers that may be absent: import fewer routes at once")
			return nil
		}
		sent := r.readRateLimit(l)
		r.descriptors += len(sent)
		for _, d := range sent {
			d.Requests.NarrowTo(s)
			list = append(list, d)
		}
	}
	return list
}

// rateLimit is one of rate_limits.
type rateLimit struct {
	*routev3.RateLimit
	at source.Place
}

// rateLimitsIn reads the rate_limits of an object.
func (r *reader) rateLimitsIn(n *policy.Node, at source.Place) (list []rateLimit) {
	for i, item := range source.ItemsOf(n, "rate_limits") {
		at := at.Item("rate_limits", i)
		list = append(list, rateLimit{decode[*routev3.RateLimit](r, item, at), at})
	}
	return list
}

// ofStage are the rate_limits of a route or a virtual host that are for a filter of the stage. Those in the
// configuration of a filter have no stage.
func (r *reader) ofStage(stage uint32, all []rateLimit) (list []rateLimit) {
	for _, l := range all {
		if other := l.GetStage().GetValue(); other == stage {
			list = append(list, l)
		} else {
			r.Note(l.at, fmt.Sprintf("ignored: it is of stage %d, and the filter of stage %d", other, stage))
		}
	}
	return list
}

// rateLimitsAt are rate_limits of a decoded object at a place.
func rateLimitsAt(decoded []*routev3.RateLimit, at source.Place) (list []rateLimit) {
	for i, l := range decoded {
		list = append(list, rateLimit{l, at.Item("rate_limits", i)})
	}
	return list
}
