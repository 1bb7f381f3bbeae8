package envoy

import (
	"fmt"
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

// sentBy lists by which rate_limits a filter sends, and for which requests. It is given those of a route: those for the
// route alone, and those that the host's routes share. If all routes share them, and take all requests of the host,
// they are for these. For requests of no route the filter sends nothing.
func sentBy(
	hosts []*virtualHost, ofRoute func(h *virtualHost, route *hostRoute) (alone, shared []rateLimit),
) (list []rateLimitsFor) {
	for _, h := range hosts {
		var ofHost []rateLimit
		var sharing []request.Selection
		for _, route := range h.routes {
			alone, shared := ofRoute(h, route)
			if len(alone) > 0 {
				list = append(list, rateLimitsFor{alone, route.selection})
			}
			if len(shared) > 0 {
				ofHost = shared
				sharing = append(sharing, route.selection)
			}
		}
		if h.takesAll && len(sharing) == len(h.routes) {
			sharing = []request.Selection{h.selection}
		}
		for _, requests := range sharing {
			list = append(list, rateLimitsFor{ofHost, requests})
		}
	}
	return list
}

// byRoute are the rate_limits by which a filter sends for a route where its configurations have none: those of the
// route, and those that it shares with others of its host.
func (r *reader) byRoute(
	h *virtualHost, route *hostRoute, stage uint32, vhost vhostRateLimits,
) (alone, shared []rateLimit) {
	if route.answers {
		return nil, nil
	}
	alone = r.ofStage(stage, route.rateLimits)
	if vhost.addsHost(route) {
		shared = r.ofStage(stage, h.rateLimits)
	}
	return alone, shared
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
