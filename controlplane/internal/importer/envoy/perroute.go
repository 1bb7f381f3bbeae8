package envoy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// listenerFilter is a filter of a listener that limits, of either type. What it does for the requests of a route
// depends on the route: see settingOn. A filter without a name stands alone in its file, or for one that the file
// lacks. It takes the configurations of its type that routes have under any name.
type listenerFilter struct {
	config       envoyfile.Config // its own
	typeOnRoutes string           // of the configurations that routes have for it
	works        filterReach
}

// filterReach is where a filter works, by what its listener and the routes say together.
type filterReach uint8

const (
	everywhere   filterReach = iota // but on the routes that switch it off
	whereEnabled                    // on the routes that enable it: the listener disables it
	nowhere                         // no route enables it: its rules are off
)

// newListenerFilter is a filter of a site, with its own configuration there.
func newListenerFilter(s *envoyfile.Site, own envoyfile.Config, typeOnRoutes string) *listenerFilter {
	f := &listenerFilter{config: own, typeOnRoutes: typeOnRoutes}
	switch {
	case own.Disabled && s.Enables(own.Name):
		f.works = whereEnabled
	case own.Disabled:
		f.works = nowhere
	}
	return f
}

// noteDisabled notes where a filter works that its listener disables.
func (r *reader) noteDisabled(f *listenerFilter) {
	switch f.works {
	case everywhere:
	case whereEnabled:
		r.Note(f.config.At, "the filter is disabled: there are rules only for the routes that enable it")
	case nowhere:
		r.Note(f.config.At, "the filter is disabled, and its rules are off")
	}
}

// setting is what the configurations of a route make of a filter. The route's own come before those of its virtual
// host.
type setting uint8

const (
	unchanged  setting = iota // the filter does what its own configuration says
	off                       // it does nothing
	configured                // the route has a configuration for it
)

// settingOn is what the route makes of the filter. If that is configured, it returns the route's configuration for it,
// too. An example of the filter one:
//
//	route                                   setting      if it works whereEnabled
//	/a, with {one: its configuration}       configured   configured
//	/b, with {one: {disabled: true}}        off          off
//	/c, with {one: {config: {}}}            unchanged    unchanged: it enables the filter
//	/d, with {two: its configuration}       unchanged    off
func (f *listenerFilter) settingOn(route *hostRoute) (setting, envoyfile.Config) {
	isAbout := func(c envoyfile.Config) bool { return f.has(c) || c.Name == f.name() }
	first := slices.IndexFunc(route.configs, isAbout)
	isDisabled := first >= 0 && route.configs[first].Disabled
	if isDisabled || f.works == whereEnabled && first < 0 {
		return off, envoyfile.Config{}
	}
	if i := slices.IndexFunc(route.configs, f.has); i >= 0 {
		return configured, route.configs[i]
	}
	return unchanged, envoyfile.Config{}
}

// name is the filter's name. One without a name is disabled on routes by the name that Envoy's documents give it.
func (f *listenerFilter) name() string {
	switch {
	case f.config.Name != "":
		return f.config.Name
	case f.typeOnRoutes == envoyfile.LocalType:
		return envoyNames + "local_ratelimit"
	}
	return envoyNames + "ratelimit"
}

// envoyNames begins the names that Envoy's documents give to its filters.
const envoyNames = "envoy.filters.http."

// has reports whether a configuration of a route is for the filter: Envoy finds it by the filter's name.
func (f *listenerFilter) has(c envoyfile.Config) bool {
	return c.IsOf(f.typeOnRoutes) && (f.config.Name == "" || f.config.Name == c.Name)
}

// noteUnusedConfigs notes the configurations of a route that the import uses for none of the filters of a type, though
// they are for one of the type, or may be.
func (r *reader) noteUnusedConfigs(all []*listenerFilter, route *hostRoute) {
	for _, c := range route.configs {
		r.noteNoFilter(all, c)
		if all[0].config.Name == "" { // it stands alone: see listenerFilter
			r.noteNameless(all[0], c)
		}
	}
}

// noteNoFilter notes a configuration that is of the type of the filters, and under a name that none of them has: of the
// filters one and two it is that of the name three.
func (r *reader) noteNoFilter(all []*listenerFilter, c envoyfile.Config) {
	isFor := func(f *listenerFilter) bool { return f.has(c) }
	if c.IsOf(all[0].typeOnRoutes) && !slices.ContainsFunc(all, isFor) {
		r.Note(c.At, "ignored: the listener has no "+all[0].kind()+" of the name "+c.Name)
	}
}

// noteNameless notes a configuration that disables a filter by a name, which may be that of this one: the files do not
// have its name. It may be edge, and envoy.filters.http.cors is another filter.
func (r *reader) noteNameless(f *listenerFilter, c envoyfile.Config) {
	if c.Disabled && !strings.HasPrefix(c.Name, envoyNames) {
		r.Note(c.At, "ignored: it disables the filter "+c.Name+". If that is the "+f.kind()+", which has no name in these "+
			"files, exempt the requests of the route.")
	}
}

// kind is what notes call the filter.
func (f *listenerFilter) kind() string {
	if f.typeOnRoutes == envoyfile.LocalType {
		return "local rate limit filter"
	}
	return "rate limit filter"
}

// unchangedOn are the routes for which the filter's own configuration holds, and the requests for which it does: those
// of these routes, and those of no route.
func (f *listenerFilter) unchangedOn(hosts []virtualHost) (routes []*hostRoute, requests request.Selection) {
	for _, route := range routesOf(hosts) {
		if setting, _ := f.settingOn(route); setting == unchanged {
			routes = append(routes, route)
		} else {
			exemptAtLeast(&requests, route)
		}
	}
	return routes, requests
}

// exemptAtLeast exempts the requests of a route. Where no exemption says which they are, it exempts more and says so,
// as that limits fewer requests than Envoy does. If it would exempt all, the rule is off.
func exemptAtLeast(s *request.Selection, route *hostRoute) {
	if len(route.selection.Match) == 0 {
		s.CannotMatch("they are those of routes without a configuration of their own")
		return
	}
	if len(route.selection.WhyOff) > 0 {
		s.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
	}
	// What the route leaves out is of earlier routes. It is exempt here too if these have no such setting either.
	if !hasInOrder(s.Exempt, route.selection.Exempt) {
		s.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
	}
	s.ExemptMatches(route.selection.Match)
}

// hasInOrder reports whether a list has all of some matches, if both have the order of the routes. So it looks at each
// match of the list once.
func hasInOrder(list, some []request.Match) bool {
	for _, m := range some {
		i := slices.IndexFunc(list, m.Equal)
		if i < 0 {
			return false
		}
		list = list[i:]
	}
	return true
}

// sender is a filter as it sends descriptors: by rate_limits of its own, or else by those of routes and their virtual
// hosts.
type sender struct {
	own     []rateLimit
	stage   uint32                // of the rate_limits of routes and hosts that are for it
	byRoute map[*hostRoute]choice // without the routes for which it sends nothing
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
		var byOwn []*hostRoute
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
		var byHost []*hostRoute
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
// none has others. So it is, too, where the routes are not in the files, or a matcher chooses them.
func (f sender) sendsOwnForAll(hosts []virtualHost) bool {
	hasOthers := func(route *hostRoute) bool {
		c, sends := f.choiceOn(route)
		return !sends || len(c.alone) > 0
	}
	isDefault := func(h virtualHost) bool { return h.isDefault }
	isMissing := func(h virtualHost) bool {
		return !h.takesAll && !h.hasMatcher || slices.ContainsFunc(h.routes, hasOthers)
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
