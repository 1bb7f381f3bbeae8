package envoy

import (
	"fmt"
	"slices"
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// rateLimitsFor are rate_limits, and the requests for which a filter sends descriptors by them.
type rateLimitsFor struct {
	list     []rateLimit
	requests request.Selection
}

// sender is a filter as it sends descriptors.
type sender struct {
	own              []rateLimit           // if it has any, those of routes and their virtual hosts do not count
	stage            uint32                // of the rate_limits of virtual hosts that are for it
	choices          map[*hostRoute]choice // for the other routes it sends nothing
	onlyWhereEnabled bool                  // it sends for no route but those that enable it
}

// choice says by which rate_limits a filter sends for a route. The zero choice sends nothing. The first row that holds
// counts:
//
//	for a route                                             alone             joins
//	where the filter does not work: configFor is ofNobody   none              no
//	that answers by itself                                  none              no
//	whose configuration is for another domain               none              no
//	whose configuration for the filter has rate_limits      these             no
//	others, if the filter's own configuration has           none              yes, by the filter's
//	others                                                  the route's own   if addsHost, by the host's
//
// The local filter sends by the rate_limits of the configuration by which it works, if that has any: see
// descriptorsFor. It has choices for the routes of all other configurations, so rows three to five are not for it.
type choice struct {
	alone []rateLimit // for this route by itself
	joins bool        // by one list for this and other routes of its host: the filter's own, or the host's
}

// choiceByRoute is the choice if neither the filter nor its configuration for the route has rate_limits.
func (r *reader) choiceByRoute(route *hostRoute, stage uint32, vhost vhostRateLimits) choice {
	if route.answers {
		return choice{}
	}
	return choice{alone: r.ofStage(stage, route.rateLimits), joins: vhost.addsHost(route)}
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
func (v vhostRateLimits) addsHost(route *hostRoute) bool {
	return route.include || v == vhostAlways || v == vhostIfAlone && len(route.rateLimits) == 0
}

// sentBy lists by which rate_limits the filter sends, and for which requests. For those of no route it sends nothing,
// unless it sendsOwnForAll.
func (r *reader) sentBy(f sender, hosts []*virtualHost) (list []rateLimitsFor) {
	if len(f.own) > 0 && f.sendsOwnForAll(hosts) {
		return []rateLimitsFor{{list: f.own}}
	}
	for _, h := range hosts {
		for _, route := range h.routes {
			if alone := f.choices[route].alone; len(alone) > 0 {
				list = append(list, rateLimitsFor{alone, route.selection})
			}
		}
		joined := h.requestsOf(f.joinedBy(h))
		if len(joined) == 0 {
			continue
		}
		by := f.own
		if len(by) == 0 {
			by = r.ofStage(f.stage, h.rateLimits)
		}
		for _, requests := range joined {
			list = append(list, rateLimitsFor{by, requests})
		}
	}
	return list
}

// joinedBy are the routes of a host for which the filter sends by one list: those whose choice joins.
func (f *sender) joinedBy(h *virtualHost) (list []*hostRoute) {
	for _, route := range h.routes {
		if f.choices[route].joins {
			list = append(list, route)
		}
	}
	return list
}

// sendsOwnForAll reports whether the filter sends by its own rate_limits for all requests: each comes to some host, and
// it does so for all of each host. It also does where the routes are not in the files.
func (f *sender) sendsOwnForAll(hosts []*virtualHost) bool {
	isDefault := func(h *virtualHost) bool { return h.isDefault }
	isPart := func(h *virtualHost) bool { return !f.sendsOwnForHost(h) }
	return len(hosts) == 0 || slices.ContainsFunc(hosts, isDefault) && !slices.ContainsFunc(hosts, isPart)
}

// sendsOwnForHost reports whether the filter sends by its own rate_limits for all requests of a host. Those that a
// matcher chooses are not in the files, and may enable it or not.
func (f *sender) sendsOwnForHost(h *virtualHost) bool {
	if h.hasMatcher {
		return !f.onlyWhereEnabled
	}
	return h.areAll(f.joinedBy(h))
}

// maxDescriptors bounds the descriptors of an import: each takes a kilobyte, and most make a rule.
const maxDescriptors = 10 * policy.MaxRules

// descriptorsOf are the descriptors that a filter sends.
func (r *reader) descriptorsOf(all []rateLimitsFor) (list []descriptor.Descriptor, err error) {
	for _, s := range all {
		for _, l := range s.list {
			if r.descriptors > maxDescriptors {
				return nil, policyfile.Errors{l.at.Problem("the rate_limits before these make more than " +
					strconv.Itoa(maxDescriptors) + " descriptors, one for each route and combination of headers that may be " +
					"absent: import fewer routes at once")}
			}
			sent := r.readRateLimit(l)
			r.descriptors += len(sent)
			for _, d := range sent {
				d.Requests.NarrowTo(s.requests)
				list = append(list, d)
			}
		}
	}
	return list, nil
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
