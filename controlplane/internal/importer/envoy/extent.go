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
	config envoyfile.Config
	filter *listenerFilter
	routes []*hostRoute // for which the filter works by it
}

// localConfigs are the configurations that the filters have, and that routes have for them. Routes have the same one
// where it is that of their virtual host. An example, in which the filter one has the configuration F, and two has G:
//
//	route                              one works by   two works by
//	/a, which has R for one            R              G
//	/b, which switches one off                        G
//	/c, which has nothing for either   F              G
func (r *reader) localConfigs(filters []*listenerFilter, hosts []*virtualHost) (list []*localConfig) {
	listed := func(f *listenerFilter, c envoyfile.Config) *localConfig {
		isIt := func(known *localConfig) bool { return known.filter == f && known.config.Node == c.Node }
		if i := slices.IndexFunc(list, isIt); i >= 0 {
			return list[i]
		}
		known := &localConfig{decode[*localv3.LocalRateLimit](r, c.Node, c.At), c, f, nil}
		list = append(list, known)
		return known
	}
	for _, f := range filters {
		if hasBuckets(f.config.Node) { // else it is there for its routes
			listed(f, f.config)
		}
	}
	for _, route := range routesOf(hosts) {
		for _, f := range filters {
			if c, works := f.configFor(route); works && hasBuckets(c.Node) {
				known := listed(f, c)
				known.routes = append(known.routes, route)
			}
		}
	}
	return list
}

// extent is where a configuration holds: for which requests, and the routes that these come to. They may come to none.
type extent struct {
	routes   []*hostRoute
	requests request.Selection
}

// extents are where the configuration holds: each of its routes by itself. But the filter's own holds for all requests
// except those of other routes, also for those of no route. In the example of localConfigs:
//
//	configuration   extents
//	F               all requests but those of /a and /b, with the route /c
//	G               all requests, with all routes
//	R               those of /a, with that route
//
// If F is that of a filter that works whereEnabled, it has the extent of each route that enables it.
func (c *localConfig) extents(hosts []*virtualHost) (list []extent) {
	if c.config == c.filter.config && c.filter.worksWhere != whereEnabled {
		return []extent{{c.routes, c.requestsOfFilter(hosts)}}
	}
	for _, route := range c.routes {
		list = append(list, extent{[]*hostRoute{route}, route.selection})
	}
	return list
}
