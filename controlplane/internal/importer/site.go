package importer

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// site is what one listener of Envoy says about limits: its filters, and the
// routes with their rate_limits.
type site struct {
	in      *source
	name    string
	filters []*object // configurations of rate limit filters
	hosts   []virtualHost
}

type virtualHost struct {
	scope  scope
	limits []*policy.Node
	routes []route
}

type route struct {
	scope   scope
	limits  []*policy.Node
	own     []*object // configurations of filters for this route
	include bool      // the virtual host's limits too
}

// scope says for which requests something holds.
type scope struct {
	match   match
	exempt  []match
	unknown []string
	notes   []string
}

func (s scope) and(other scope) scope {
	all := scope{
		match: s.match.clone(), exempt: slices.Concat(s.exempt, other.exempt),
		unknown: slices.Concat(s.unknown, other.unknown), notes: slices.Concat(s.notes, other.notes),
	}
	if !all.match.and(other.match) {
		all.unknown = append(all.unknown, "Its virtual host and its route ask for the same header, which a match cannot.")
	}
	return all
}

// look opens an object whose other fields are none of our business.
func (s *source) look(n *policy.Node) *object {
	if n == nil || n.Kind != policy.Object {
		return nil
	}
	return &object{node: n, in: s, used: map[string]bool{}, place: place{s.file, n.Line, n.Column}}
}

// sites finds the listeners in a configuration of Envoy, or its routes alone.
func (s *source) sites(root *policy.Node) []*site {
	var list []*site
	var walk func(n *policy.Node, listener string)
	walk = func(n *policy.Node, listener string) {
		for _, item := range n.Items {
			walk(item, listener)
		}
		o := s.look(n)
		if o == nil {
			return
		}
		if o.has("filter_chains") {
			listener = s.listenerName(o)
		}
		switch {
		case o.has("http_filters"):
			list = append(list, s.site(o, listener))
			return
		case o.has("virtual_hosts"):
			list = append(list, &site{in: s, name: listener, hosts: s.virtualHosts(o)})
			return
		}
		for _, f := range n.Fields {
			walk(f.Value, listener)
		}
	}
	walk(root, "")
	return list
}

// listenerName is the name by which a listener is chosen.
func (s *source) listenerName(o *object) string {
	if name := o.text("name"); name != "" {
		return name
	}
	address := s.look(s.look(o.get("address")).get("socket_address"))
	return address.text("address") + ":" + address.text("port_value")
}

func (s *source) site(manager *object, listener string) *site {
	at := &site{in: s, name: listener}
	if listener == "" {
		at.name = "line " + strconv.Itoa(manager.node.Line)
	}
	for _, n := range manager.items("http_filters") {
		if c := s.filterConfig(s.look(n).get("typed_config")); c != nil {
			at.filters = append(at.filters, c)
		}
	}
	if routes := s.look(manager.get("route_config")); routes != nil {
		at.hosts = s.virtualHosts(routes)
	}
	return at
}

// filterTypes are the messages that are read.
var filterTypes = []string{
	"envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
	"envoy.extensions.filters.http.ratelimit.v3.RateLimit",
	"envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
}

// filterConfig opens a typed_config that is one of filterTypes, also as a
// TypedStruct or in a FilterConfig of a route.
func (s *source) filterConfig(n *policy.Node) *object {
	o := s.look(n)
	typ := o.text("@type")
	switch {
	case strings.HasSuffix(typ, ".TypedStruct"):
		typ, n = o.text("type_url"), o.get("value")
	case strings.HasSuffix(typ, ".FilterConfig"):
		return s.filterConfig(o.get("config"))
	}
	for _, known := range filterTypes {
		if strings.HasSuffix(typ, "/"+known) {
			return s.quiet(n, known[strings.LastIndexByte(known, '.')+1:])
		}
	}
	return nil
}

func (s *source) virtualHosts(routes *object) []virtualHost {
	var list []virtualHost
	for _, n := range routes.items("virtual_hosts") {
		o := s.look(n)
		h := virtualHost{limits: o.items("rate_limits")}
		h.scope.hosts(o.texts("domains"), s.notes)
		h.routes = s.routes(o, h.scope)
		list = append(list, h)
	}
	for i := range list { // the host with * is for those that no other has
		if len(list[i].scope.match.hosts) > 0 {
			continue
		}
		var others []string
		for j := range list {
			others = append(others, list[j].scope.match.hosts...)
		}
		if len(others) > 0 {
			rest := match{hosts: others}
			list[i].scope.exempt = append(list[i].scope.exempt, rest)
			for k := range list[i].routes {
				list[i].routes[k].scope.exempt = append(list[i].routes[k].scope.exempt, rest)
			}
		}
	}
	return list
}

// hosts takes a virtual host's domains.
func (s *scope) hosts(domains []string, n *notes) {
	if slices.Contains(domains, "*") {
		return
	}
	for _, d := range domains {
		name := withoutPort(d)
		if name != d {
			n.add(place{}, "The host "+d+" is compared without its port here.")
		}
		if !isHost(strings.TrimPrefix(name, "*.")) {
			s.unknown = append(s.unknown, "The host "+d+" has a wildcard that no match here has.")
			continue
		}
		if !slices.Contains(s.match.hosts, name) {
			s.match.hosts = append(s.match.hosts, name)
		}
	}
}

// routes reads a virtual host's routes. Envoy takes the first that fits, so
// each leaves out those before it.
func (s *source) routes(host *object, in scope) []route {
	var list []route
	var before []conditions
	for _, n := range host.items("routes") {
		o := s.look(n)
		var c conditions
		c.routeMatch(s.look(o.get("match")))
		r := route{scope: scope(c)}
		for i := range before {
			r.scope.leaveOut(&c, &before[i])
		}
		before = append(before, c)
		r.scope = in.and(r.scope)
		action := s.look(o.get("route"))
		r.limits = action.items("rate_limits")
		r.include = action.boolean("include_vh_rate_limits", false)
		for _, from := range []*object{o, host} {
			for _, f := range s.look(from.get("typed_per_filter_config")).fields() {
				if c := s.filterConfig(f.Value); c != nil {
					r.own = append(r.own, c)
				}
			}
		}
		list = append(list, r)
	}
	return list
}

func (o *object) fields() []policy.Field {
	if o == nil {
		return nil
	}
	return o.node.Fields
}

// leaveOut takes the requests of an earlier route out of a later one, if they
// may be the same.
func (s *scope) leaveOut(own, earlier *conditions) {
	if len(own.match.paths) > 0 && len(earlier.match.paths) > 0 && pathsApart(own.match.paths[0], earlier.match.paths[0]) {
		return
	}
	if len(earlier.unknown) > 0 || len(earlier.exempt) > 0 {
		s.notes = append(s.notes, "An earlier route takes some of these requests in Envoy, by conditions that no exempt here can say.")
		return
	}
	if !earlier.match.empty() {
		s.exempt = append(s.exempt, earlier.match)
	}
}

// pathsApart reports whether no path fits both patterns, as far as is easily
// known.
func pathsApart(a, b string) bool {
	if strings.HasPrefix(a, "~") || strings.HasPrefix(b, "~") {
		return false
	}
	return pathPattern(a).apart(pathPattern(b))
}

func pathPattern(text string) pattern {
	if strings.HasSuffix(text, "*") && text[0] != '=' {
		return pattern{wildcard, text}
	}
	return pattern{exactly, strings.TrimPrefix(text, "=")}
}

// choose picks the site with a filter that wants, by name where there are
// several.
func choose(sites []*site, listener string, wants func(s *site) bool) (*site, error) {
	var fits []*site
	c := &Choices{}
	for _, s := range sites {
		if wants(s) && (listener == "" || s.name == listener) {
			fits = append(fits, s)
		}
		if wants(s) {
			c.Names = append(c.Names, s.name)
		}
	}
	switch {
	case len(fits) == 1:
		return fits[0], nil
	case len(c.Names) == 0:
		return nil, nil
	}
	return nil, c
}

// kind is the last word of the type of a filter's configuration.
func (o *object) kind() string { return strings.TrimSuffix(o.path, ".") }

// filter returns the first configuration of a kind that fits.
func (s *site) filter(kind string, fits func(*object) bool) *object {
	for _, f := range s.filters {
		if f.kind() == kind && (fits == nil || fits(f)) {
			return f
		}
	}
	return nil
}

// limited reports whether any route has rate_limits.
func (s *site) limited() bool {
	return slices.ContainsFunc(s.hosts, func(h virtualHost) bool {
		return len(h.limits) > 0 || slices.ContainsFunc(h.routes, func(r route) bool {
			return len(r.limits) > 0 || r.config("RateLimitPerRoute").has("rate_limits")
		})
	})
}

// config returns the route's own configuration of a kind.
func (r route) config(kind string) *object {
	for _, c := range r.own {
		if c.kind() == kind {
			return c
		}
	}
	return nil
}

// applied is one of rate_limits and the requests it is for.
type applied struct {
	limit *policy.Node
	scope scope
	own   *object // the route's own configuration of the filter
}

// applied lists the rate_limits of the routes for which use says so, those of
// their virtual hosts included where Envoy does so.
func (s *site) applied(kind string, use func(r *route) bool) []applied {
	var list []applied
	for i := range s.hosts {
		h := &s.hosts[i]
		var ofHost []applied
		for k := range h.routes {
			r := &h.routes[k]
			if use != nil && !use(r) {
				continue
			}
			own, limits := r.config(kind), r.limits
			own.heed()
			if kind == "RateLimitPerRoute" {
				if more := own.items("rate_limits"); len(more) > 0 {
					limits = more
				}
				own.without("the rate_limits of a route go before those of its virtual host", "override_option")
			}
			for _, limit := range limits {
				list = append(list, applied{limit, r.scope, own})
			}
			option := own.text("vh_rate_limits")
			if r.include || option == "INCLUDE" || option != "IGNORE" && len(limits) == 0 {
				for _, limit := range h.limits {
					ofHost = append(ofHost, applied{limit, r.scope, own})
				}
			}
		}
		if len(ofHost) == len(h.limits)*len(h.routes) {
			ofHost = ofHost[:0]
			for _, limit := range h.limits {
				ofHost = append(ofHost, applied{limit, h.scope, nil})
			}
		}
		list = append(list, ofHost...)
	}
	return list
}
