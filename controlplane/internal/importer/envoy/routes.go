package envoy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// virtualHost is a virtual host of Envoy, with the requests that come to it.
type virtualHost struct {
	domains    []string
	names      []string // the domains without their ports, as a policy compares hosts
	selection  request.Selection
	narrower   []*virtualHost // other hosts that take some of its domains: Envoy looks for these first
	rateLimits []rateLimit
	routes     []*hostRoute
	takesAll   bool // one of its routes takes what those before it leave
}

// hostRoute is a route of a virtual host, with the requests that Envoy finds it for.
type hostRoute struct {
	selection  request.Selection
	rateLimits []rateLimit
	configs    []envoyfile.Config // of the route, then of what it is in
	ofClusters []envoyfile.Config // of its weighted clusters: the import uses none of these
	include    bool               // include_vh_rate_limits
	answers    bool               // by itself, as a redirect does: then its rate_limits and its host's do not count
}

// routesOf are the routes of all hosts.
func routesOf(hosts []*virtualHost) (list []*hostRoute) {
	for _, h := range hosts {
		list = append(list, h.routes...)
	}
	return list
}

// virtualHosts reads the virtual hosts of a site.
func (r *reader) virtualHosts(s *envoyfile.Site) (list []*virtualHost) {
	all := source.ItemsOf(s.Routing.Node, "virtual_hosts")
	for _, n := range all {
		list = append(list, newHost(n))
	}
	ofRouting := envoyfile.PerFilterConfigs(s.Routing.Node, s.Routing.At)
	for i, n := range all {
		at := s.Routing.At.Item("virtual_hosts", i)
		h := list[i]
		h.selection = r.hostSelection(h)
		h.narrower = h.exemptOthers(slices.Concat(list[:i], list[i+1:]))
		h.rateLimits = r.readRateLimits(n, at)
		configs := append(envoyfile.PerFilterConfigs(n, at), ofRouting...)
		if source.FieldOf(n, "matcher") == nil {
			h.routes, h.takesAll = r.readRoutes(h.selection, n, at, configs)
			continue
		}
		r.Note(at.In("matcher"), "the import does not read the routes that it chooses")
		h.selection.TurnOff(request.NoMatch("a matcher of their host chooses the route"))
		h.routes, h.takesAll = []*hostRoute{{selection: h.selection, configs: configs}}, true // in their place
	}
	return list
}

// newHost is a virtual host with its domains alone.
func newHost(n *policy.Node) *virtualHost {
	h := &virtualHost{}
	for _, d := range source.ItemsOf(n, "domains") {
		h.domains = append(h.domains, d.Text)
		h.names = append(h.names, request.WithoutPort(d.Text))
	}
	return h
}

// hostSelection is for the requests to a virtual host's domains; to all hosts if a part of a configuration has none.
func (r *reader) hostSelection(h *virtualHost) (s request.Selection) {
	if len(h.domains) == 0 || slices.Contains(h.domains, "*") {
		return s
	}
	for i, d := range h.domains {
		if h.names[i] != d {
			r.NoteImport("The host " + d + " is compared without its port here.")
		}
	}
	return request.ToHosts(h.names)
}

// readRoutes reads the routes of a virtual host, and reports whether one of them takes what those before it leave.
// Envoy takes the first that fits, so each leaves out those before it: behind the route /a, the route / is for all
// paths but /a.
func (r *reader) readRoutes(
	ofHost request.Selection, n *policy.Node, at source.Place, configs []envoyfile.Config,
) (list []*hostRoute, takeAll bool) {
	var before []request.Selection
	for i, o := range source.ItemsOf(n, "routes") {
		at := at.Item("routes", i)
		matched := r.routeSelection(o, at)
		if takeAll {
			r.Note(at, "an earlier route takes all requests, so there is no rule for this one and those behind it")
			break
		}
		rest := matched
		exemptEarlierRoutes(&rest, before)
		requests := ofHost
		requests.NarrowTo(rest)
		list = append(list, &hostRoute{
			selection:  requests,
			rateLimits: r.readRateLimits(source.FieldOf(o, "route"), at.In("route")),
			include:    source.TextOf(o, "route", "include_vh_rate_limits") == "true",
			answers:    source.FieldOf(o, "redirect") != nil || source.FieldOf(o, "direct_response") != nil,
			configs:    append(envoyfile.PerFilterConfigs(o, at), configs...),
			ofClusters: configsOfClusters(source.FieldOf(o, "route", "weighted_clusters"), at.In("route.weighted_clusters")),
		})
		takeAll = matched.IsEverything()
		before = append(before, matched)
	}
	return list, takeAll
}

// configsOfClusters are the configurations of weighted_clusters. Envoy takes those of the cluster that it chooses for a
// request before those of the route.
func configsOfClusters(weighted *policy.Node, at source.Place) (list []envoyfile.Config) {
	for i, n := range source.ItemsOf(weighted, "clusters") {
		list = append(list, envoyfile.PerFilterConfigs(n, at.Item("clusters", i))...)
	}
	return list
}
