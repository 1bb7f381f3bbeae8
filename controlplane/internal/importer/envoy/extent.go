package envoy

import (
	"slices"

	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// localConfig is a configuration with limits, of a filter or of routes for it. In each of its extents the default
// bucket is for the requests. Its other limits are for those that send their descriptors: see descriptorsIn.
type localConfig struct {
	*localv3.LocalRateLimit
	config  envoyfile.Config
	filter  *listenerFilter
	extents []extent
}

// configsOf are the configurations that the filters have, and that routes have for them. Routes have the same one where
// it is that of their virtual host. An example, in which the filter one has the configuration F, and two has G:
//
//	route                              one works by   two works by
//	/a, which has R for one            R              G
//	/b, which switches one off                        G
//	/c, which has nothing for either   F              G
//
// So F holds for all requests but those of /a and /b, also for those of no route. G holds for all requests, and R for
// those of /a.
func (r *reader) configsOf(filters []*listenerFilter, hosts []*virtualHost) (list []*localConfig) {
	newConfig := func(f *listenerFilter, c envoyfile.Config, extents []extent) *localConfig {
		return &localConfig{decode[*localv3.LocalRateLimit](r, c.Node, c.At), c, f, extents}
	}
	for _, f := range filters {
		if hasBuckets(f.config.Node) { // else it is there for its routes
			list = append(list, newConfig(f, f.config, f.ownExtents(hosts)))
		}
	}
	for _, route := range routesOf(hosts) {
		for _, f := range filters {
			c, whose := f.configFor(route)
			isIt := func(known *localConfig) bool { return known.filter == f && known.config.Node == c.Node }
			switch i := slices.IndexFunc(list, isIt); {
			case whose != ofRoute, !hasBuckets(c.Node):
			case i >= 0:
				list[i].extents = append(list[i].extents, extentOf(route))
			default:
				list = append(list, newConfig(f, c, []extent{extentOf(route)}))
			}
		}
	}
	return list
}

// extent is where a configuration holds. An example is that of the filter's own configuration beside these routes:
//
//	route                              is in routes   requests
//	/a, with a configuration for it    no             Exempt has /a
//	/c, with nothing for it            yes            limited
//	/, which switches the filter off   no             WhyOff says why: an exempt of / would have /c
type extent struct {
	routes   map[*hostRoute]bool
	requests request.Selection
}

// extentOf is that of a configuration for one route.
func extentOf(route *hostRoute) extent {
	return extent{map[*hostRoute]bool{route: true}, route.selection}
}

// ownExtents are where the filter's own configuration holds: for all requests but those of the other routes, for which
// it works by another one, or not at all. If it works whereEnabled, it is each route that enables it, by itself.
func (f *listenerFilter) ownExtents(hosts []*virtualHost) (list []extent) {
	isOther := func(route *hostRoute) bool {
		_, whose := f.configFor(route)
		return whose != ofFilter
	}
	if f.works == whereEnabled {
		for _, route := range slices.DeleteFunc(routesOf(hosts), isOther) {
			list = append(list, extentOf(route))
		}
		return list
	}
	all := extent{routes: map[*hostRoute]bool{}}
	for _, h := range hosts {
		// Its own routes that Envoy looks for before the next one of the host.
		before := slices.DeleteFunc(routesOf(h.narrower), isOther)
		for _, route := range h.routes {
			if isOther(route) {
				exemptAtLeast(&all.requests, route, before)
			} else {
				all.routes[route] = true
				before = append(before, route)
			}
		}
	}
	return []extent{all}
}

// exemptAtLeast exempts from a rule's requests all that another route matches. The route may have fewer of them, as it
// leaves some to the rule's routes before it. Then the rule limits fewer requests than Envoy does, and a comment says
// why. If it would exempt all requests, the rule is off.
func exemptAtLeast(requests *request.Selection, other *hostRoute, before []*hostRoute) {
	match, ok := other.selection.Match()
	if len(match) == 0 {
		requests.TurnOff(request.NoMatch("they are those of routes without a configuration of their own"))
		return
	}
	if !ok {
		requests.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
	}
	takesSome := func(route *hostRoute) bool { return !route.selection.IsApart(other.selection) }
	if slices.ContainsFunc(before, takesSome) {
		requests.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
	}
	if len(other.selection.Comments()) > 0 {
		requests.Comment(exemptsMore)
	}
	requests.ExemptMatches(match)
}
