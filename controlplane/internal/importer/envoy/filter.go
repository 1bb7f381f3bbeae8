package envoy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
)

// listenerFilter is a filter of a listener that limits. One that the files lack has no configuration, and does not
// limit by itself.
type listenerFilter struct {
	filterType
	config envoyfile.Config // its own
	works  activation
}

// filterType is one of the two types of filters that limit.
type filterType struct {
	onRoutes  string // the message of the configurations that routes have for it
	usualName string // that Envoy's documents give it
	inNotes   string
}

var (
	localFilter   = filterType{envoyfile.LocalType, envoyNames + "local_ratelimit", "local rate limit filter"}
	serviceFilter = filterType{envoyfile.PerRouteType, envoyNames + "ratelimit", "rate limit filter"}
)

// envoyNames begins the names that Envoy's documents give to its filters.
const envoyNames = "envoy.filters.http."

// isNameless reports whether the files do not have the filter's name: they lack it, or it stands alone in its file. It
// takes the configurations of its type that routes have under any name.
func (f *listenerFilter) isNameless() bool { return f.config.Name == "" }

// activation is where a filter works, by what its listener and the routes say together.
type activation uint8

const (
	everywhere   activation = iota // but on the routes that switch it off
	whereEnabled                   // on the routes that enable it: the listener disables it
	neverWorks                     // no route enables it: its rules are as if it worked everywhere, and are off
)

// newListenerFilter is a filter of a site, with its own configuration there.
func newListenerFilter(of filterType, s *envoyfile.Site, own envoyfile.Config) *listenerFilter {
	f := &listenerFilter{filterType: of, config: own}
	switch {
	case own.Disabled && s.Enables(own.Name):
		f.works = whereEnabled
	case own.Disabled:
		f.works = neverWorks
	}
	return f
}

// noteDisabled notes where a filter works that its listener disables.
func (r *reader) noteDisabled(f *listenerFilter) {
	switch f.works {
	case everywhere:
	case whereEnabled:
		r.Note(f.config.At, "the filter is disabled: there are rules only for the routes that enable it")
	case neverWorks:
		r.Note(f.config.At, "the filter is disabled, and its rules are off")
	}
}

// owner is whose configuration a filter works by for a route.
type owner uint8

const (
	ofNobody owner = iota // the filter does not work there
	ofFilter              // the filter's own
	ofRoute               // that of the route or of its virtual host
)

// configFor is the configuration by which the filter works for a route, and whose it is. The route's own configurations
// come before those of its virtual host. An example of the filter one:
//
//	route                                   if it works everywhere    whereEnabled
//	/a, with {one: its configuration}       ofRoute                   ofRoute
//	/b, with {one: {disabled: true}}        ofNobody                  ofNobody
//	/c, with {one: {config: {}}}            ofFilter                  ofFilter: the route enables it
//	/d, with {two: its configuration}       ofFilter                  ofNobody
//
// By which rate_limits it sends descriptors there is in sentFor.
func (f *listenerFilter) configFor(route *hostRoute) (envoyfile.Config, owner) {
	first := slices.IndexFunc(route.configs, f.isMeantBy)
	isDisabled := first >= 0 && route.configs[first].Disabled
	if isDisabled || f.works == whereEnabled && first < 0 {
		return envoyfile.Config{}, ofNobody
	}
	if i := slices.IndexFunc(route.configs, f.has); i >= 0 {
		return route.configs[i], ofRoute
	}
	return f.config, ofFilter
}

// has reports whether a configuration of a route is for the filter: Envoy finds it by the filter's name.
func (f *listenerFilter) has(c envoyfile.Config) bool {
	return c.IsOf(f.onRoutes) && (f.isNameless() || f.config.Name == c.Name)
}

// isMeantBy reports whether a configuration is for the filter, or enables or disables it. A nameless one is disabled by
// its usual name.
func (f *listenerFilter) isMeantBy(c envoyfile.Config) bool {
	return f.has(c) || c.Name == cmp.Or(f.config.Name, f.usualName)
}

// noteUnusedConfigs notes the configurations of a route that the import uses for none of the filters of a type, though
// they are for one of the type, or may be.
func (r *reader) noteUnusedConfigs(all []*listenerFilter, route *hostRoute) {
	for _, c := range route.configs {
		r.noteNoFilter(all, c)
		if all[0].isNameless() { // as where it stands alone
			r.noteNameless(all[0], c)
		}
	}
	for _, c := range route.ofClusters {
		isFor := func(f *listenerFilter) bool { return f.isMeantBy(c) }
		if i := slices.IndexFunc(all, isFor); i >= 0 {
			r.Note(c.At, "ignored: it is for the "+all[i].inNotes+" where Envoy chooses this cluster, and no match asks for "+
				"the cluster. The rules are those of the route.")
		}
	}
}

// noteNoFilter notes a configuration that is of the type of the filters, and under a name that none of them has: of the
// filters one and two it is that of the name three.
func (r *reader) noteNoFilter(all []*listenerFilter, c envoyfile.Config) {
	isFor := func(f *listenerFilter) bool { return f.has(c) }
	if c.IsOf(all[0].onRoutes) && !slices.ContainsFunc(all, isFor) {
		r.Note(c.At, "ignored: the listener has no "+all[0].inNotes+" of the name "+c.Name)
	}
}

// noteNameless notes a configuration that disables a filter by a name, which may be that of this one: the files do not
// have its name. It may be edge, and envoy.filters.http.cors is another filter.
func (r *reader) noteNameless(f *listenerFilter, c envoyfile.Config) {
	if c.Disabled && !strings.HasPrefix(c.Name, envoyNames) {
		r.Note(c.At, "ignored: it disables the filter "+c.Name+". If that is the "+f.inNotes+", which has no name in these "+
			"files, exempt the requests of the route.")
	}
}
