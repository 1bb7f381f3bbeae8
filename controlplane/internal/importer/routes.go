package importer

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

type virtualHost struct {
	scope  scope
	limits []*routev3.RateLimit
	routes []*route
}

type route struct {
	scope   scope
	limits  []*routev3.RateLimit
	own     []filterConfig // of the route, then of what it is in
	include bool           // the virtual host's limits too
}

// hosts decodes the virtual hosts of a site.
func (r *reader) hosts(s *site) (list []virtualHost) {
	if s.routing == nil {
		return nil
	}
	all := decodeOnce[*routev3.RouteConfiguration](s.in, s.routing)
	for i, o := range all.GetVirtualHosts() {
		h := virtualHost{scope: r.hostScope(o.GetDomains()), limits: o.GetRateLimits()}
		var others []string // hosts of which Envoy finds another virtual host, as it takes the longest domain that fits
		for j, other := range all.GetVirtualHosts() {
			for _, domain := range other.GetDomains() {
				name := withoutPort(domain)
				switch {
				case i == j || !slices.ContainsFunc(o.GetDomains(), func(d string) bool { return isBelow(name, withoutPort(d)) }):
				case !isHost(strings.TrimPrefix(name, "*.")):
					h.scope.cannot("Another virtual host takes the requests to " + domain + ", and an exempt cannot say that.")
				case !slices.Contains(others, name):
					others = append(others, name)
				}
			}
		}
		if others != nil {
			h.scope.exempt = append(h.scope.exempt, match{host.kind: others})
		}
		r.addRoutes(&h, o, r.configsOf(all))
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
func (r *reader) hostScope(domains []string) (s scope) {
	if slices.Contains(domains, "*") {
		return s
	}
	var hosts []string
	for _, d := range domains {
		name := withoutPort(d)
		if name != d {
			r.add(place{}, "The host "+d+" is compared without its port here.")
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

// addRoutes reads a virtual host's routes. Envoy takes the first that fits, so
// each leaves out those before it.
func (r *reader) addRoutes(h *virtualHost, host *routev3.VirtualHost, ofAll []filterConfig) {
	var before []scope
	for _, o := range host.GetRoutes() {
		var own scope
		r.readRouteMatch(&own, o.GetMatch())
		all := own
		for i := range before {
			if b := &before[i]; len(b.match) == 0 && len(b.exempt)+len(b.unknown) == 0 {
				r.note(o, "", "an earlier route takes all requests, so there is no rule for this one and those behind it")
				return
			}
			all.leaveOut(&own, &before[i])
		}
		before = append(before, own)
		h.routes = append(h.routes, &route{
			scope:   h.scope.and(all),
			limits:  o.GetRoute().GetRateLimits(),
			include: o.GetRoute().GetIncludeVhRateLimits().GetValue(), //nolint:staticcheck // configurations still have it
			own:     slices.Concat(r.configsOf(o), r.configsOf(host), ofAll),
		})
	}
}

// configsOf lists the configurations of filters that a route or virtual host has.
func (r *reader) configsOf(m proto.Message) (list []filterConfig) {
	o := r.of(m, "typed_per_filter_config")
	if o.node != r.origins[m].node {
		for _, f := range o.node.Fields {
			list = append(list, o.in.config(f.Name, f.Value))
		}
	}
	return list
}

// routeDescriptors lists the descriptors of the routes that own accepts, with
// those of their virtual hosts where Envoy adds them. Own says what a route's
// configuration says: rate_limits instead of the route's, and vh_rate_limits.
func (r *reader) routeDescriptors(hosts []virtualHost, stage uint32,
	own func(*route) (limits []*routev3.RateLimit, hostLimits int32, ok bool)) (list []descriptor) {
	for i := range hosts {
		h, including := &hosts[i], []scope(nil) // the routes that include the host's limits
		for _, route := range h.routes {
			limits, option, ok := own(route)
			if !ok {
				continue
			}
			const include, ignore = 1, 2 // as both filters number them
			if len(limits) == 0 {
				limits = route.limits
			}
			list = append(list, r.descriptors(limits, route.scope, stage)...)
			if route.include || option == include || option != ignore && len(limits) == 0 {
				including = append(including, route.scope)
			}
		}
		if len(including) == len(h.routes) {
			including = []scope{h.scope}
		}
		for _, s := range including {
			list = append(list, r.descriptors(h.limits, s, stage)...)
		}
	}
	return list
}

// maxDescriptors bounds those of all routes: each takes a kilobyte, and most make a rule.
const maxDescriptors = 10 * policy.MaxRules

// descriptors are those of a list of rate_limits, for the requests of a scope.
func (r *reader) descriptors(limits []*routev3.RateLimit, s scope, stage uint32) (list []descriptor) {
	for _, o := range limits {
		switch {
		case r.made < 0:
			return nil
		case r.made > maxDescriptors:
			r.made = -1 // that is said once
			r.failField(o, "actions", "the actions before these make more than "+strconv.Itoa(maxDescriptors)+" descriptors, by each route "+
				"and combination of headers that may be absent: import fewer routes at once")
			return nil
		}
		made := r.readRateLimit(o, stage)
		r.made += len(made)
		for _, d := range made {
			d.scope = d.and(s)
			list = append(list, d)
		}
	}
	return list
}
