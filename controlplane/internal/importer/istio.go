package importer

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// patched is the listener that the patches of EnvoyFilters make. The place is that of their file.
func (r *reader) patched(envoyFilters []*policy.Node, at place) *policy.Node {
	filters, hosts := listOf(), listOf()
	for _, e := range envoyFilters {
		for _, p := range itemsOf(e, "spec", "config_patches") {
			value := fieldOf(p, "patch", "value")
			vhost := fieldOf(p, "match", "route_configuration", "vhost")
			switch to := textOf(p, "apply_to"); {
			case value == nil:
			case to == "HTTP_FILTER":
				filters.Items = append(filters.Items, value)
			case to == "VIRTUAL_HOST", to == "ROUTE_CONFIGURATION":
				h := hostOf(hosts, textOf(vhost, "name"))
				h.Fields = append(h.Fields, value.Fields...)
			case to == "HTTP_ROUTE":
				match := everyRequest()
				if name := textOf(vhost, "route", "name"); name != "" {
					match = object()
					r.note(at, "an EnvoyFilter is for the route "+name+", and does not say which requests that route takes: "+
						"its rules are off until they have a match")
				}
				routes := fieldOf(hostOf(hosts, textOf(vhost, "name")), "routes")
				routes.Items = append(routes.Items, matched(value, match))
			}
		}
	}
	for _, h := range hosts.Items {
		if routes := fieldOf(h, "routes"); len(routes.Items) == 0 {
			routes.Items = []*policy.Node{matched(object(), everyRequest())}
		}
	}
	r.note(place{}, "An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for every "+
		"request of the proxies that get the policy.")
	listener := object(field("http_filters", filters))
	if len(hosts.Items) > 0 {
		listener.Fields = append(listener.Fields, field("route_config", object(field("virtual_hosts", hosts))))
	}
	return listener
}

// hostOf is the virtual host that Istio names by its domain, or in a way that stands for every
// request.
func hostOf(hosts *policy.Node, domain string) *policy.Node {
	isAnyName := strings.HasPrefix(domain, "*") && !strings.HasPrefix(domain, "*.")
	if domain == "" || isAnyName || strings.HasPrefix(domain, "inbound|") {
		domain = "*"
	}
	for _, h := range hosts.Items {
		if itemsOf(h, "domains")[0].Text == domain {
			return h
		}
	}
	h := object(field("domains", listOf(text(domain))), field("routes", listOf()))
	hosts.Items = append(hosts.Items, h)
	return h
}

// matched is a route with a match.
func matched(route, match *policy.Node) *policy.Node {
	return object(append(slices.Clip(route.Fields), field("match", match))...)
}

func everyRequest() *policy.Node { return object(field("prefix", text("/"))) }
