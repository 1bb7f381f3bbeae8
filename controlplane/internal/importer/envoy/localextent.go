package envoy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// extent says where a configuration of the local filter holds: for which routes, and for which requests. The requests
// follow from the routes. What holds there is for
//
//	the configuration's default bucket       the requests
//	its rate_limits, if it has any           the requests: those of routes do not count then
//	else those of routes and virtual hosts   each of the routes by itself
//
// An example is where the configuration of the filter holds beside these routes:
//
//	route                              has   in requests
//	/a, with a configuration for it    no    Exempt has /a
//	/c, with nothing for it            yes   limited
//	/, which switches the filter off   no    WhyOff says why: an exempt of / would have /c
type extent struct {
	has      func(*route) bool
	requests request.Selection
}

// extentOfRoute is where the configuration of a route holds.
func extentOfRoute(own *route) extent {
	return extent{has: func(each *route) bool { return each == own }, requests: own.selection}
}

// localFilter is a local filter of a listener. One without a name has the configurations of all names.
type localFilter struct{ envoyfile.Config }

// noFilter stands for the filter of a listener that has none, or none that is known. It limits nothing itself, and has
// the configurations of all routes.
var noFilter = localFilter{}

// localFiltersOf are the local filters among those of a listener, or else noFilter.
func localFiltersOf(filters []envoyfile.Config) (list []localFilter) {
	for _, c := range filters {
		if isLocalFilter(c) {
			list = append(list, localFilter{c})
		}
	}
	if list == nil {
		return []localFilter{noFilter}
	}
	return list
}

// extent is where the filter's own configuration holds.
func (f localFilter) extent(hosts []virtualHost) extent {
	has := func(each *route) bool {
		_, isReplaced := f.replacedBy(each)
		return !isReplaced && !each.isOff(f.Name)
	}
	return extent{has: has, requests: requestsWhere(hosts, has)}
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

// noteUnusedConfigs notes the configurations of a route that are for none of the filters.
func (r *reader) noteUnusedConfigs(local []localFilter, each *route) {
	for _, c := range each.configs {
		if isLocalFilter(c) && !slices.ContainsFunc(local, func(f localFilter) bool { return f.has(c) }) {
			r.Note(c.At, "ignored: the listener has no local rate limit filter of the name "+c.Name)
		}
	}
}
