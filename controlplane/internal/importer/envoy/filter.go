package envoy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
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

// setting is what the configurations of a route make of a filter. The route's own come before those of its virtual
// host. An example of the filter one:
//
//	route                                   setting             if it works whereEnabled
//	/a, with {one: its configuration}       works by that       works by that
//	/b, with {one: {disabled: true}}        does not work       does not work
//	/c, with {one: {config: {}}}            works               works: the route enables it
//	/d, with {two: its configuration}       works               does not work
type setting struct {
	works   bool
	ofRoute *envoyfile.Config // by which it works; nil = by its own configuration
}

// isOwn reports whether the filter works by its own configuration.
func (s setting) isOwn() bool { return s.works && s.ofRoute == nil }

// settingOn is what the route makes of the filter.
func (f *listenerFilter) settingOn(route *hostRoute) setting {
	first := slices.IndexFunc(route.configs, f.isMeantBy)
	isDisabled := first >= 0 && route.configs[first].Disabled
	if isDisabled || f.works == whereEnabled && first < 0 {
		return setting{}
	}
	if i := slices.IndexFunc(route.configs, f.has); i >= 0 {
		return setting{works: true, ofRoute: &route.configs[i]}
	}
	return setting{works: true}
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

// reach is where a configuration holds. An example is that of the filter's own configuration beside these routes:
//
//	route                              is in routes   requests
//	/a, with a configuration for it    no             Exempt has /a
//	/c, with nothing for it            yes            limited
//	/, which switches the filter off   no             WhyOff says why: an exempt of / would have /c
type reach struct {
	routes   []*hostRoute
	requests request.Selection
}

// reachOf is that of a configuration for one route.
func reachOf(route *hostRoute) reach { return reach{[]*hostRoute{route}, route.selection} }

// ownReaches are where the filter's own configuration holds: for all requests but those of routes for which it works by
// another one, or not at all. If it works whereEnabled, it is each route that enables it, by itself.
func (f *listenerFilter) ownReaches(hosts []*virtualHost) (list []reach) {
	var all reach
	for _, route := range routesOf(hosts) {
		if f.settingOn(route).isOwn() {
			all.routes = append(all.routes, route)
			list = append(list, reachOf(route))
		} else {
			exemptAtLeast(&all.requests, route)
		}
	}
	if f.works == whereEnabled {
		return list
	}
	return []reach{all}
}

// exemptAtLeast exempts the requests of a route. Where no exemption says which they are, it exempts more and says so,
// as that limits fewer requests than Envoy does. If it would exempt all, the rule is off.
func exemptAtLeast(s *request.Selection, route *hostRoute) {
	if len(route.selection.Match()) == 0 {
		s.CannotMatch("they are those of routes without a configuration of their own")
		return
	}
	if route.selection.IsOff() {
		s.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
	}
	// The match also has the requests that the route leaves to earlier ones. They must be exempt already, else the match
	// exempts more than the route.
	if !hasInOrder(s.Exempt(), route.selection.Exempt()) {
		s.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
	}
	if len(route.selection.Comments()) > 0 {
		s.Comment(exemptsMore)
	}
	s.ExemptMatches(route.selection.Match())
}

// hasInOrder reports whether a list has all of some matches. As both have the order of the routes, it looks at each
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
