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

// sending is what a filter sends descriptors by, and for which requests.
type sending struct {
	rateLimits []rateLimit
	requests   request.Selection
}

// sender is a filter that sends descriptors. If it has rate_limits of its own, it sends by these, and not by those of
// routes and hosts.
type sender struct {
	rateLimits []rateLimit
	stage      uint32                       // of the rate_limits of routes and hosts
	routes     map[*hostRoute]routeSettings // those where it works
}

// routeSettings are what a filter's configuration for a route says.
type routeSettings struct {
	rateLimits []rateLimit // by which it sends alone
	vhost      vhostRateLimits
}

// sendingsOf lists what a filter sends for the routes of hosts. If all routes of a host share what it sends for the
// host, and take all its requests, it is for these. For requests of no route the filter sends nothing, but if no routes
// are in the files, it sends what its own configuration says for all requests.
func (r *reader) sendingsOf(f sender, hosts []*virtualHost) (list []sending) {
	if len(hosts) == 0 {
		return []sending{{rateLimits: f.rateLimits}}
	}
	for _, h := range hosts {
		var sharing []request.Selection
		for _, route := range h.routes {
			own, shares := r.routeSends(f, route)
			list = append(list, sending{own, route.selection})
			if shares {
				sharing = append(sharing, route.selection)
			}
		}
		if len(sharing) == 0 {
			continue
		}
		shared := f.rateLimits
		if shared == nil {
			shared = r.withStage(f.stage, h.rateLimits)
		}
		if h.takesAll && len(sharing) == len(h.routes) {
			sharing = []request.Selection{h.selection}
		}
		for _, requests := range sharing {
			list = append(list, sending{shared, requests})
		}
	}
	return list
}

// routeSends are the rate_limits by which a filter sends for one route, and whether it sends for the route too by those
// that the routes of the host share. The first row that holds counts:
//
//	a route                                               own               shares
//	that answers by itself                                none              no
//	where the filter does not work                        none              no
//	whose configuration for the filter has rate_limits    these             no
//	others, if the filter's own configuration has         none              those of the filter
//	others                                                the route's own   those of the host, if addsHost
func (r *reader) routeSends(f sender, route *hostRoute) (own []rateLimit, shares bool) {
	if route.answers {
		return nil, false
	}
	settings, works := f.routes[route]
	switch {
	case !works:
		return nil, false
	case settings.rateLimits != nil:
		return settings.rateLimits, false
	case f.rateLimits != nil:
		return nil, true
	}
	return r.withStage(f.stage, route.rateLimits), settings.vhost.addsHost(route)
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
func (r *reader) descriptorsOf(all []sending) (list []descriptor.Descriptor, err error) {
	for _, s := range all {
		for _, l := range s.rateLimits {
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

// readRateLimits reads the rate_limits of an object.
func (r *reader) readRateLimits(n *policy.Node, at source.Place) (list []rateLimit) {
	for i, item := range source.ItemsOf(n, "rate_limits") {
		at := at.Item("rate_limits", i)
		list = append(list, rateLimit{decode[*routev3.RateLimit](r, item, at), at})
	}
	return list
}

// withStage are the rate_limits of a route or a virtual host that are for a filter of the stage. Those in the
// configuration of a filter have no stage.
func (r *reader) withStage(stage uint32, all []rateLimit) (list []rateLimit) {
	for _, l := range all {
		if other := l.GetStage().GetValue(); other == stage {
			list = append(list, l)
		} else {
			r.Note(l.at, fmt.Sprintf("ignored: it is of stage %d, and the filter of stage %d", other, stage))
		}
	}
	return list
}
