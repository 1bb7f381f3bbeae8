package envoy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// extent says where a configuration of the local filter holds, in two ways: a rule of the configuration needs one
// selection for all requests there, and the rate_limits of routes are read for each route by itself.
//
//	what is for these requests               by
//	the configuration's default bucket       requests
//	its rate_limits, if it has any           requests: those of routes do not count then
//	else those of routes and virtual hosts   routes
//
// An example is where the configuration of the filter holds beside these routes:
//
//	route                              in requests                                       in routes
//	/a, with a configuration for it    Exempt has /a                                     no
//	/c, with nothing for it            limited                                           yes
//	/, which switches the filter off   WhyOff says why: an exempt of / would have /c     no
type extent struct {
	requests request.Selection
	routes   map[*route]bool
}

// extentOfRoute is where the configuration of a route holds.
func extentOfRoute(each *route) extent {
	return extent{requests: each.selection, routes: map[*route]bool{each: true}}
}

// localFilter is a local filter of a listener. One without a name has the configurations of all names.
type localFilter struct{ envoyfile.Config }

// localFiltersOf are the local filters among those of a listener. If it has none, or none is known, the configurations
// of its routes are for one that limits nothing itself.
func localFiltersOf(filters []envoyfile.Config) (list []localFilter) {
	for _, c := range filters {
		if isLocalFilter(c) {
			list = append(list, localFilter{c})
		}
	}
	if list == nil {
		return []localFilter{{}}
	}
	return list
}

// extent is where the filter's own configuration holds.
func (f localFilter) extent(hosts []virtualHost) extent {
	e := extent{routes: map[*route]bool{}}
	for _, each := range routesOf(hosts) {
		if _, isReplaced := f.replacedBy(each); isReplaced || each.isOff(f.Name) {
			leaveOutAtLeast(&e.requests, each)
		} else {
			e.routes[each] = true
		}
	}
	return e
}

// replacedBy is the configuration that a route has for the filter in place of its own. There is none if the route
// switches the filter off.
func (f localFilter) replacedBy(each *route) (c envoyfile.Config, ok bool) {
	i := slices.IndexFunc(each.configs, f.has)
	if i < 0 || each.isOff(f.Name) {
		return envoyfile.Config{}, false
	}
	return each.configs[i], true
}

// has reports whether a configuration of a route is for the filter.
func (f localFilter) has(c envoyfile.Config) bool {
	return isLocalFilter(c) && (f.Name == "" || f.Name == c.Name)
}

// noteNoFilter notes the configurations of a route that are for none of the filters.
func (r *reader) noteNoFilter(local []localFilter, each *route) {
	for _, c := range each.configs {
		if isLocalFilter(c) && !slices.ContainsFunc(local, func(f localFilter) bool { return f.has(c) }) {
			r.Note(c.At, "ignored: the listener has no local rate limit filter of the name "+c.Name)
		}
	}
}

// leaveOutAtLeast exempts the requests of a route. Where no exemption says which they are, it exempts more and says so,
// as that limits fewer requests than Envoy does. If it would exempt all, the rule is off.
func leaveOutAtLeast(s *request.Selection, each *route) {
	if len(each.selection.Match) == 0 {
		s.CannotMatch("they are those of routes without a configuration of their own")
		return
	}
	if len(each.selection.WhyOff) > 0 {
		s.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
	}
	isElsewhere := func(m request.Match) bool { return !s.HasExempt(m) }
	if slices.ContainsFunc(each.selection.Exempt, isElsewhere) {
		s.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
	}
	s.AddExempt(each.selection.Match)
}
