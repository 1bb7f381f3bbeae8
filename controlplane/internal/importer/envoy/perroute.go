package envoy

import (
	"fmt"
	"slices"
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// filter is a filter of a listener that limits, of either type. Routes say what it does for their requests: see on. One
// without a name stands for a filter that the file does not have, and has the configurations of all names.
type filter struct {
	envoyfile.Config
	typeOnRoutes     string // of the configurations that routes have for it
	onlyWhereEnabled bool   // it is disabled but for the routes that enable it
}

// setting is what a route, or else what it is in, makes of a filter.
type setting uint8

const (
	unchanged  setting = iota // the filter does what its own configuration says
	off                       // it does nothing
	configured                // the route has a configuration for it
)

// on is what the route makes of the filter, with the configuration that it has for it if it is configured. An example
// of the filter one:
//
//	route                                   setting      if it is onlyWhereEnabled
//	/a, with {one: its configuration}       configured   configured
//	/b, with {one: {disabled: true}}        off          off
//	/c, with {one: {config: {}}}            unchanged    unchanged: it enables the filter
//	/d, with {two: its configuration}       unchanged    off
func (f *filter) on(route *hostRoute) (setting, envoyfile.Config) {
	isNamed := func(c envoyfile.Config) bool { return c.Name == f.Name }
	named := slices.IndexFunc(route.configs, isNamed)
	isDisabled := named >= 0 && route.configs[named].Disabled
	if isDisabled || f.onlyWhereEnabled && named < 0 {
		return off, envoyfile.Config{}
	}
	if i := slices.IndexFunc(route.configs, f.has); i >= 0 {
		return configured, route.configs[i]
	}
	return unchanged, envoyfile.Config{}
}

// has reports whether a configuration of a route is for the filter: Envoy finds it by the filter's name.
func (f *filter) has(c envoyfile.Config) bool {
	return c.IsOf(f.typeOnRoutes) && (f.Name == "" || f.Name == c.Name)
}

// noteUnusedConfigs notes the configurations of a route that are of the type of all these filters, and for none of
// them.
func (r *reader) noteUnusedConfigs(all []*filter, route *hostRoute) {
	kind := "rate limit filter"
	if all[0].typeOnRoutes == envoyfile.LocalType {
		kind = "local rate limit filter"
	}
	for _, c := range route.configs {
		isFor := func(f *filter) bool { return f.has(c) }
		if c.IsOf(all[0].typeOnRoutes) && !slices.ContainsFunc(all, isFor) {
			r.Note(c.At, "ignored: the listener has no "+kind+" of the name "+c.Name)
		}
	}
}

// unchangedOn are the routes for which the filter's own configuration holds, and the requests for which it does: those
// of these routes, and those of no route.
func (f *filter) unchangedOn(hosts []virtualHost) (routes []*hostRoute, requests request.Selection) {
	for _, route := range routesOf(hosts) {
		if is, _ := f.on(route); is == unchanged {
			routes = append(routes, route)
		} else {
			leaveOutAtLeast(&requests, route)
		}
	}
	return routes, requests
}

// leaveOutAtLeast exempts the requests of a route. Where no exemption says which they are, it exempts more and says so,
// as that limits fewer requests than Envoy does. If it would exempt all, the rule is off.
func leaveOutAtLeast(s *request.Selection, route *hostRoute) {
	if len(route.selection.Match) == 0 {
		s.CannotMatch("they are those of routes without a configuration of their own")
		return
	}
	if len(route.selection.WhyOff) > 0 {
		s.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
	}
	passed := 0 // of s.Exempt: both lists have the order of the routes, so those before it are not looked at again
	for _, m := range route.selection.Exempt {
		i := slices.IndexFunc(s.Exempt[passed:], m.Equal)
		if i < 0 {
			s.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
			break
		}
		passed += i
	}
	s.AddExempt(route.selection.Match)
}

// sending is what a filter sends for a route: descriptors by some rate_limits.
type sending struct {
	limits []rateLimit // of its configuration for the route, in place of all others; none: the others count
	vhost  vhostLimits
}

// vhostLimits is Envoy's vh_rate_limits: whether the limits of the virtual host count for a route as
// well. Both filters number it like this.
type vhostLimits int32

const (
	vhostIfAlone vhostLimits = iota // Envoy's OVERRIDE: only if the route has none
	vhostAlways                     // INCLUDE
	vhostNever                      // IGNORE
)

// addsHost reports whether Envoy sends the host's rate_limits H for a route too, which has its own R or none:
//
//	vh_rate_limits    include_vh_rate_limits    a route with R    a route without
//	OVERRIDE          false                     R                 H
//	OVERRIDE          true                      R and H           H
//	INCLUDE           either                    R and H           H
//	IGNORE            false                     R                 nothing
//	IGNORE            true                      R and H           H
func (s sending) addsHost(route *hostRoute) bool {
	return route.include || s.vhost == vhostAlways || s.vhost == vhostIfAlone && len(route.limits) == 0
}

// routeDescriptors lists the descriptors that a filter of a stage sends by the rate_limits of its routes, with those of
// their virtual hosts where Envoy adds them. It sends none for other routes.
func (r *reader) routeDescriptors(
	hosts []virtualHost, stage uint32, sends map[*hostRoute]sending,
) (list []descriptor.Descriptor) {
	for i := range hosts {
		h := &hosts[i]
		var including []*hostRoute // for which the host's limits count
		for _, route := range h.routes {
			s, isSent := sends[route]
			switch {
			case !isSent || route.answers:
			case len(s.limits) > 0:
				list = append(list, r.descriptorsOf(s.limits, route.selection)...)
			default:
				list = append(list, r.descriptorsOf(r.ofStage(stage, route.limits), route.selection)...)
				if s.addsHost(route) {
					including = append(including, route)
				}
			}
		}
		for _, requests := range h.requestsOf(including) {
			list = append(list, r.descriptorsOf(r.ofStage(stage, h.limits), requests)...)
		}
	}
	return list
}

// filterDescriptors lists the descriptors that a filter sends by rate_limits of its own. They count for the routes that
// have no others in their configuration for the filter.
func (r *reader) filterDescriptors(
	hosts []virtualHost, own []rateLimit, sends map[*hostRoute]sending,
) (list []descriptor.Descriptor) {
	var requests []request.Selection
	isForAll := len(hosts) == 0 || slices.ContainsFunc(hosts, func(h virtualHost) bool { return h.isDefault })
	for i := range hosts {
		h := &hosts[i]
		var counted []*hostRoute
		for _, route := range h.routes {
			s, isSent := sends[route]
			switch {
			case !isSent || route.answers:
			case len(s.limits) > 0:
				list = append(list, r.descriptorsOf(s.limits, route.selection)...)
			default:
				counted = append(counted, route)
			}
		}
		requests = append(requests, h.requestsOf(counted)...)
		isForAll = isForAll && (h.areAll(counted) || h.hasMatcher)
	}
	if isForAll {
		requests = []request.Selection{{}} // one for all hosts
	}
	for _, s := range requests {
		list = append(list, r.descriptorsOf(own, s)...)
	}
	return list
}

// maxDescriptors bounds the descriptors of all routes: each takes a kilobyte, and most make a rule.
const maxDescriptors = 10 * policy.MaxRules

// descriptorsOf are the descriptors of a list of rate_limits, for the requests of a selection.
func (r *reader) descriptorsOf(limits []rateLimit, s request.Selection) (list []descriptor.Descriptor) {
	for _, l := range limits {
		switch {
		case r.madeTooMany:
			return nil
		case r.made > maxDescriptors:
			r.madeTooMany = true
			r.Fail(l.at, "the rate_limits before these make more than "+strconv.Itoa(maxDescriptors)+" descriptors, one for "+
				"each route and combination of headers that may be absent: import fewer routes at once")
			return nil
		}
		made := r.readRateLimit(l)
		r.made += len(made)
		for _, d := range made {
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

// rateLimits reads the rate_limits of an object.
func (r *reader) rateLimits(n *policy.Node, at source.Place) (list []rateLimit) {
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

// limitsAt are rate_limits of a decoded object at a place.
func limitsAt(decoded []*routev3.RateLimit, at source.Place) (list []rateLimit) {
	for i, l := range decoded {
		list = append(list, rateLimit{l, at.Item("rate_limits", i)})
	}
	return list
}
