package envoy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
)

// listenerFilter is a filter of a listener that limits. One that the files lack has no configuration, and does not
// limit by itself.
type listenerFilter struct {
	kind       filterType
	config     envoyfile.Config // its own
	worksWhere worksWhere
}

// worksWhere is where a filter works, by what its listener says. A route may switch it off wherever that is.
type worksWhere uint8

const (
	everywhere   worksWhere = iota
	whereEnabled            // on the routes that enable it, as the listener disables it
	nowhere                 // no route enables it. Its rules are as if it worked everywhere, and are off
)

// filterType is one of the two types of filters that limit.
type filterType struct {
	inListener string // the message of its configuration in a listener
	onRoutes   string // the message of the configurations that routes have for it
	usualName  string // that Envoy's documents give it
	inNotes    string
	byDefault  float64 // the percentage of requests that it limits, where its configuration does not say
}

var (
	localFilter = filterType{
		inListener: envoyfile.LocalType, onRoutes: envoyfile.LocalType,
		usualName: "envoy.filters.http.local_ratelimit", inNotes: "local rate limit filter",
		byDefault: 0,
	}
	serviceFilter = filterType{
		inListener: envoyfile.ServiceType, onRoutes: envoyfile.PerRouteType,
		usualName: "envoy.filters.http.ratelimit", inNotes: "rate limit filter",
		byDefault: 100,
	}
)

// filtersOf are the filters of a type that a site has. If it has none, or none that is known, an empty one has the
// configurations of all routes.
func filtersOf(s *envoyfile.Site, of filterType) (list []*listenerFilter) {
	for _, c := range s.Filters {
		if c.IsOf(of.inListener) {
			f := &listenerFilter{kind: of, config: c}
			switch {
			case c.Disabled && s.Enables(c.Name):
				f.worksWhere = whereEnabled
			case c.Disabled:
				f.worksWhere = nowhere
			}
			list = append(list, f)
		}
	}
	if list == nil {
		return []*listenerFilter{{kind: of}}
	}
	return list
}

// noteDisabled notes where a filter works that its listener disables.
func (r *reader) noteDisabled(f *listenerFilter) {
	switch f.worksWhere {
	case whereEnabled:
		r.Note(f.config.At, "the filter is disabled: there are rules only for the routes that enable it")
	case nowhere:
		r.Note(f.config.At, "the filter is disabled, and its rules are off")
	case everywhere:
	}
}

// configFor is the configuration by which the filter works for a route, unless it does not work there. The route's own
// configurations come before those of its virtual host. An example, of a filter of the name one:
//
//	route                                   if it works everywhere    whereEnabled
//	/a, with {one: its configuration}       that of the route         that of the route
//	/b, with {one: {disabled: true}}        none                      none
//	/c, with {one: {config: {}}}            the filter's own          the filter's own: the route enables it
//	/d, with {two: its configuration}       the filter's own          none
//
// The table of routeSends says by which rate_limits it sends descriptors for the route.
func (f *listenerFilter) configFor(route *hostRoute) (c envoyfile.Config, works bool) {
	var meant []envoyfile.Config
	for _, c := range route.configs {
		if f.isMeantBy(c) {
			meant = append(meant, c)
		}
	}
	isEnabled := f.worksWhere != whereEnabled
	if len(meant) > 0 {
		isEnabled = !meant[0].Disabled
	}
	if !isEnabled {
		return envoyfile.Config{}, false
	}
	hasLimits := func(c envoyfile.Config) bool { return c.IsOf(f.kind.onRoutes) }
	if i := slices.IndexFunc(meant, hasLimits); i >= 0 { // else they only enable the filter
		return meant[i], true
	}
	return f.config, true
}

// isMeantBy reports whether a route's configuration is for the filter, or enables or disables it: Envoy finds it by the
// filter's name. For a filter of which the files lack the name, as it may stand alone in its file, it is one of its
// type under any name, or one of its usual name.
func (f *listenerFilter) isMeantBy(c envoyfile.Config) bool {
	if f.config.Name == "" {
		return c.IsOf(f.kind.onRoutes) || c.Name == f.kind.usualName
	}
	return c.Name == f.config.Name
}

// noteUnusedConfigs notes the configurations of routes that are for filters of a type, and that the import uses for
// none of those of the listener.
func (r *reader) noteUnusedConfigs(filters []*listenerFilter, hosts []*virtualHost) {
	of := filters[0].kind
	isMeantForOne := func(c envoyfile.Config) bool {
		return slices.ContainsFunc(filters, func(f *listenerFilter) bool { return f.isMeantBy(c) })
	}
	for _, route := range routesOf(hosts) {
		for _, c := range route.configs {
			if c.IsOf(of.onRoutes) && !isMeantForOne(c) {
				r.Note(c.At, "ignored: the listener has no "+of.inNotes+" of the name "+c.Name)
			}
		}
		for _, c := range route.ofClusters {
			if isMeantForOne(c) {
				r.Note(c.At, "ignored: it is for the "+of.inNotes+" where Envoy chooses this cluster, and no match asks for "+
					"the cluster. The rules are those of the route.")
			}
		}
	}
}
