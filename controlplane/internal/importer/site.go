package importer

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// site is what one listener of Envoy says about limits: its filters, and the
// routes with their rate_limits.
type site struct {
	name, routes string // of the listener, and of its routes
	filters      []filterConfig
	in           *source      // of the routing
	routing      *policy.Node // has virtual_hosts, or is nil
}

// filterConfig is the configuration of a filter, decoded when it is needed.
type filterConfig struct {
	name     string // of the filter
	message  string // the name of its type
	node     *policy.Node
	disabled bool
}

// sites finds the listeners in configurations of Envoy, each with the routes
// that it names, and routes that no listener names. It reads the trees of the
// files, because listeners hold configurations of types that this import does
// not know.
func sites(files ...*source) []*site {
	var listeners, routes []*site
	for _, in := range files {
		in.find(in.root, "", &listeners, &routes)
	}
	used := map[*site]bool{}
	for _, s := range listeners {
		if s.routing != nil {
			continue
		}
		from := func(r *site) bool { return s.routes != "" && r.name == s.routes }
		at := slices.IndexFunc(routes, from)
		last := slices.IndexFunc(routes, func(r *site) bool { return r.in != files[0] })
		if at < 0 && last >= 0 && last == len(routes)-1 { // the only ones that were given for it
			at = last
		}
		if at >= 0 {
			s.in, s.routing, used[routes[at]] = routes[at].in, routes[at].routing, true
		}
	}
	return append(listeners, slices.DeleteFunc(routes, func(r *site) bool { return used[r] })...)
}

// find adds the listeners and routes below a node.
func (in *source) find(n *policy.Node, listener string, listeners, routes *[]*site) {
	for _, item := range n.Items {
		in.find(item, listener, listeners, routes)
	}
	if fieldOf(n, "filter_chains") != nil {
		address := fieldOf(n, "address", "socket_address")
		listener = cmp.Or(textOf(n, "name"), textOf(address, "address")+":"+textOf(address, "port_value"))
	}
	filters := fieldOf(n, "http_filters")
	switch {
	case filters != nil:
		s := &site{name: listener, in: in, routing: fieldOf(n, "route_config")}
		s.routes = cmp.Or(textOf(s.routing, "name"), textOf(n, "rds", "route_config_name"))
		if listener == "" {
			s.name = "line " + strconv.Itoa(n.Line)
		}
		for _, f := range filters.Items {
			c := configOf(textOf(f, "name"), fieldOf(f, "typed_config"))
			c.disabled = textOf(f, "disabled") == "true"
			s.filters = append(s.filters, c)
		}
		*listeners = append(*listeners, s)
	case fieldOf(n, "virtual_hosts") != nil:
		name := cmp.Or(textOf(n, "name"), listener, "line "+strconv.Itoa(n.Line))
		*routes = append(*routes, &site{name: name, in: in, routing: n})
	default:
		for _, f := range n.Fields {
			if !isField(f.Name, "warming_state") && !isField(f.Name, "draining_state") { // no request comes to these
				in.find(f.Value, listener, listeners, routes)
			}
		}
	}
}

// configOf finds the configuration in a typed_config, which may be in a
// TypedStruct or in a FilterConfig of a route.
func configOf(name string, n *policy.Node) filterConfig {
	message := typeOf(textOf(n, "@type"))
	switch {
	case strings.HasSuffix(message, ".TypedStruct"):
		message, n = typeOf(textOf(n, "type_url")), fieldOf(n, "value")
	case strings.HasSuffix(message, ".FilterConfig"):
		c := configOf(name, fieldOf(n, "config"))
		c.disabled = textOf(n, "disabled") == "true"
		return c
	}
	return filterConfig{name: name, message: message, node: n}
}

// typeOf is the name of a message in an address of its type.
func typeOf(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// config decodes the first of these configurations that is an M and fits; nil
// if none is.
func config[M proto.Message](in *source, list []filterConfig, fits func(n *policy.Node) bool) (m M) {
	for _, c := range list {
		if isConfig[M](c) && (fits == nil || fits(c.node)) {
			return decodeOnce[M](in, c.node)
		}
	}
	return m
}

// decodeOnce decodes an object by the type M, once.
func decodeOnce[M proto.Message](in *source, n *policy.Node) (m M) {
	if known, ok := in.decoded[n]; ok {
		return known.(M)
	}
	made := m.ProtoReflect().New()
	in.decoded[n] = made.Interface()
	path := string(made.Descriptor().Name())
	if n == in.root || fieldOf(n, "virtual_hosts") != nil {
		path = "" // its fields are known without it
	}
	in.message(n, path, made)
	return made.Interface().(M)
}

// isConfig reports whether a configuration is of a message type.
func isConfig[M proto.Message](c filterConfig) bool {
	var m M
	return c.node != nil && c.message == string(m.ProtoReflect().Descriptor().FullName())
}

// limited reports whether any route has rate_limits.
func (s *site) limited() bool {
	return contains(s.routing, func(n *policy.Node) bool {
		return len(itemsOf(n, "rate_limits")) > 0
	})
}

type virtualHost struct {
	scope  scope
	limits []*routev3.RateLimit
	routes []*hostRoute
}

type hostRoute struct {
	scope   scope
	limits  []*routev3.RateLimit
	own     []filterConfig // of the route, then of what it is in
	include bool           // the virtual host's limits too

	local *localv3.LocalRateLimit // its own configuration of that filter
	apart bool                    // it has one, or switches the filter off
}

// hosts decodes the virtual hosts of a site.
func (in *source) hosts(s *site) []virtualHost {
	if s == nil || s.routing == nil {
		return nil
	}
	var list []virtualHost
	all := decodeOnce[*routev3.RouteConfiguration](in, s.routing)
	for i, o := range all.GetVirtualHosts() {
		h := virtualHost{scope: hostScope(o.GetDomains(), in.notes), limits: o.GetRateLimits()}
		var others []string // hosts of which Envoy finds another virtual host, as it takes the longest domain that fits
		for j, other := range all.GetVirtualHosts() {
			for _, domain := range other.GetDomains() {
				at := hostScope([]string{domain}, &notes{})
				switch {
				case i == j || !slices.ContainsFunc(o.GetDomains(), func(d string) bool { return isBelow(withoutPort(domain), withoutPort(d)) }):
				case len(at.unknown) > 0:
					h.scope.cannot("Another virtual host takes the requests to " + domain + ", and an exempt cannot say that.")
				default:
					others = append(others, at.match[host.kind]...)
				}
			}
		}
		if others != nil {
			h.scope.exempt = append(h.scope.exempt, match{host.kind: others})
		}
		h.routes = in.routes(o, h.scope, in.configsOf(all))
		list = append(list, h)
	}
	return list
}

// isBelow reports whether every host of a domain is one of another that is
// shorter.
func isBelow(domain, wider string) bool {
	suffix, isWild := strings.CutPrefix(wider, "*")
	return isWild && domain != wider && strings.HasSuffix(domain, suffix)
}

// hostScope is for the requests to a virtual host's domains.
func hostScope(domains []string, n *notes) (s scope) {
	if slices.Contains(domains, "*") {
		return s
	}
	var hosts []string
	for _, d := range domains {
		name := withoutPort(d)
		if name != d {
			n.add(place{}, "The host "+d+" is compared without its port here.")
		}
		if !isHost(strings.TrimPrefix(name, "*.")) {
			s.cannot("The host " + d + " has a wildcard that no match here has.")
		} else if !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
		}
	}
	if hosts != nil {
		s.match = match{host.kind: hosts}
	}
	return s
}

// routes reads a virtual host's routes. Envoy takes the first that fits, so
// each leaves out those before it.
func (in *source) routes(host *routev3.VirtualHost, ofHost scope, ofAll []filterConfig) []*hostRoute {
	var list []*hostRoute
	var before []scope
	for _, o := range host.GetRoutes() {
		var own scope
		in.readRouteMatch(&own, o.GetMatch())
		all := own
		for i := range before {
			if b := &before[i]; len(b.match) == 0 && len(b.exempt)+len(b.unknown) == 0 {
				in.notes.add(in.at(o, ""), "an earlier route takes all requests, so there is no rule for this one and those behind it")
				return list
			}
			all.leaveOut(&own, &before[i])
		}
		before = append(before, own)
		list = append(list, &hostRoute{
			scope:   ofHost.and(all),
			limits:  o.GetRoute().GetRateLimits(),
			include: o.GetRoute().GetIncludeVhRateLimits().GetValue(), //nolint:staticcheck // configurations still have it
			own:     slices.Concat(in.configsOf(o), in.configsOf(host), ofAll),
		})
	}
	return list
}

// configsOf lists the configurations of filters that a route or virtual host has.
func (in *source) configsOf(m protoreflect.ProtoMessage) []filterConfig {
	var list []filterConfig
	if n := fieldOf(in.origins[m].node, "typed_per_filter_config"); n != nil {
		for _, f := range n.Fields {
			list = append(list, configOf(f.Name, f.Value))
		}
	}
	return list
}

// applied is one of rate_limits and the requests it is for.
type applied struct {
	limit *routev3.RateLimit
	scope scope
	route *hostRoute // nil for one of all routes of a virtual host
}

// applyLimits lists the rate_limits of the routes that use accepts, with those
// of their virtual hosts where Envoy adds them. Own says what a route's own
// configuration says: rate_limits instead of the route's, and vh_rate_limits.
func applyLimits(hosts []virtualHost, use func(r *hostRoute) bool,
	own func(r *hostRoute) (limits []*routev3.RateLimit, hostLimits int32)) []applied {
	var list []applied
	for i := range hosts {
		h := &hosts[i]
		var ofHost []applied
		for _, r := range h.routes {
			if !use(r) {
				continue
			}
			const include, ignore = 1, 2 // as both filters number them
			limits, option := own(r)
			if len(limits) == 0 {
				limits = r.limits
			}
			for _, limit := range limits {
				list = append(list, applied{limit, r.scope, r})
			}
			if r.include || option == include || option != ignore && len(limits) == 0 {
				for _, limit := range h.limits {
					ofHost = append(ofHost, applied{limit, r.scope, r})
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
