package envoyfile

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// This file makes one listener of the patches of Istio's EnvoyFilters.

// patched is the listener that the patches of EnvoyFilters make. The paths of places start at it: no file has it.
func patched(to *draft.Findings, envoyFilters []source.Resource) *policy.Node {
	listener := source.Wrap("http_filters", source.NewList())
	ofHosts := forAllRoutes(to, envoyFilters)
	for _, e := range envoyFilters {
		for _, p := range source.ItemsOf(e.Node, "spec", "config_patches") {
			for _, part := range partsOf(to, e.At, p, ofHosts) {
				listener = merged(listener, part)
			}
		}
	}
	for _, h := range hostsOf(listener) {
		route := ofHosts[firstDomain(h)]
		if route == nil && len(source.ItemsOf(h, "routes")) == 0 {
			route = source.NewObject()
		}
		if route != nil { // it stands for those of the host, which no patch has. It takes what the others leave
			listener = merged(listener, withHost(firstDomain(h), withRoute(route)))
		}
	}
	to.NoteImport("An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for " +
		"every request of the proxies that get the policy.")
	isLimitedDefault := func(h *policy.Node) bool { return firstDomain(h) == "*" && hasRateLimitsOrLimiter(h) }
	if hosts := hostsOf(listener); len(hosts) > 1 && slices.ContainsFunc(hosts, isLimitedDefault) {
		to.NoteImport("Limits in patches for all virtual hosts are here for those hosts that no other patch names: write " +
			"the same for the others.")
	}
	return listener
}

// forAllRoutes is, for each domain, what patches have for all routes of its host. Istio merges all of them into each of
// these routes.
func forAllRoutes(to *draft.Findings, envoyFilters []source.Resource) map[string]*policy.Node {
	ofHosts := map[string]*policy.Node{}
	for _, e := range envoyFilters {
		for _, p := range source.ItemsOf(e.Node, "spec", "config_patches") {
			if !isForAllRoutes(p) {
				continue
			}
			domain, value := domainOf(p), source.FieldOf(p, "patch", "value")
			both, replaced := mergedRoute(ofHosts[domain], value)
			for _, name := range replaced {
				to.Note(e.At, "an EnvoyFilter replaces the configuration of the filter "+draft.Clip(name, 100)+" that an "+
					"earlier patch has for the same routes: the limits of the earlier one have no rule")
			}
			ofHosts[domain] = both
		}
	}
	return ofHosts
}

// isForAllRoutes reports whether a patch has something for all routes of a host. One with a match has a route of its
// own instead.
func isForAllRoutes(patch *policy.Node) bool {
	value := source.FieldOf(patch, "patch", "value")
	return source.TextOf(patch, "apply_to") == "HTTP_ROUTE" && value != nil &&
		source.FieldOf(value, "match") == nil && chosenRoute(patch) == ""
}

// chosenRoute says for which route of a host a patch is; nothing if it is for all of them. Most routes have the action
// ROUTE, so a patch for these counts as one for all.
func chosenRoute(patch *policy.Node) string {
	route := source.FieldOf(patch, "match", "route_configuration", "vhost", "route")
	if name := source.TextOf(route, "name"); name != "" {
		return "the route " + name
	}
	if action := source.TextOf(route, "action"); action == "REDIRECT" || action == "DIRECT_RESPONSE" {
		return "a route of the action " + action
	}
	return ""
}

// mergedRoute is a route with what a patch has for it too, and the names of the filters whose configurations the patch
// replaces: Istio merges nothing in these. The route is nil if there is nothing of it yet.
func mergedRoute(route, patch *policy.Node) (both *policy.Node, replaced []string) {
	const name = "typed_per_filter_config"
	if route == nil {
		return patch, nil
	}
	configs := source.FieldOf(route, name)
	if configs == nil {
		return merged(route, patch), nil
	}
	kept := source.NewObject()
	others := PerFilterConfigs(patch, source.Place{})
	for _, f := range configs.Fields {
		if slices.ContainsFunc(others, func(c Config) bool { return c.Name == f.Name }) {
			replaced = append(replaced, f.Name)
		} else {
			kept.Fields = append(kept.Fields, f)
		}
	}
	return merged(merged(withoutField(route, name), source.Wrap(name, kept)), patch), replaced
}

// partsOf are the parts of a listener that are the value of a patch. The place is that of the EnvoyFilter. What patches
// have for all routes of a host is in ofHosts.
//
//	apply_to               the part
//	HTTP_FILTER            a filter
//	ROUTE_CONFIGURATION    the routing, with a host for what it says of all requests
//	VIRTUAL_HOST           a host, if it has domains; else what is for the host that the patch names
//	HTTP_ROUTE             a route of the host that the patch names, with what is for all of its routes; the host alone
//	                       if the patch is for all routes, which one at the end stands for
//	NETWORK_FILTER, ...    what has http_filters or route_config in the value
func partsOf(
	to *draft.Findings, at source.Place, patch *policy.Node, ofHosts map[string]*policy.Node,
) []*policy.Node {
	value := source.FieldOf(patch, "patch", "value")
	if value == nil {
		return nil
	}
	domain := domainOf(patch)
	switch applyTo := source.TextOf(patch, "apply_to"); applyTo {
	case "HTTP_FILTER":
		return []*policy.Node{source.Wrap("http_filters", source.NewList(value))}
	case "ROUTE_CONFIGURATION":
		if source.FieldOf(value, "rate_limits") != nil {
			to.Fail(at, "a ROUTE_CONFIGURATION has no rate_limits: its virtual_hosts and their routes have them")
		}
		return []*policy.Node{source.Wrap("route_config", value), withHost("*", source.NewObject())}
	case "VIRTUAL_HOST":
		return []*policy.Node{withHost(domain, value)}
	case "HTTP_ROUTE":
		if isForAllRoutes(patch) {
			return []*policy.Node{withHost(domain, source.NewObject())}
		}
		if source.FieldOf(value, "match") == nil {
			to.Note(at, "an EnvoyFilter is for "+chosenRoute(patch)+", and does not say which requests that route takes: "+
				"its rules are off until they have a match")
			value, _ = mergedRoute(ofHosts[domain], value)
			value = merged(value, unknownMatch)
		}
		return []*policy.Node{withHost(domain, withRoute(value))}
	default:
		listeners := listenersIn(value)
		if len(listeners) == 0 && hasRateLimitsOrLimiter(value) {
			to.Note(at, "ignored: the limits in a patch of "+draft.Clip(applyTo, 100)+", which the import does not read")
		}
		return listeners
	}
}

// unknownMatch is the match of a route that a file names, and does not have. Package envoy finds no condition on the
// path in it, and turns its rules off.
var unknownMatch = source.Wrap("match", source.NewObject())

// listenersIn are the parts of a value that have filters or routes.
func listenersIn(value *policy.Node) (list []*policy.Node) {
	source.Walk(value, func(n *policy.Node) {
		if source.FieldOf(n, "http_filters") != nil || source.FieldOf(n, "route_config") != nil {
			list = append(list, n)
		}
	})
	return list
}

// domainOf is the domain of the virtual host that a patch is for. Istio names the host by it, or in a way that stands
// for every request.
func domainOf(patch *policy.Node) string {
	name := source.TextOf(patch, "match", "route_configuration", "vhost", "name")
	isAnyName := strings.HasPrefix(name, "*") && !strings.HasPrefix(name, "*.")
	if name == "" || isAnyName || strings.HasPrefix(name, "inbound|") {
		return "*"
	}
	return name
}

func hostsOf(listener *policy.Node) []*policy.Node {
	return source.ItemsOf(listener, "route_config", "virtual_hosts")
}

// firstDomain is the domain by which a virtual host is known.
func firstDomain(host *policy.Node) string {
	if domains := source.ItemsOf(host, "domains"); len(domains) > 0 {
		return domains[0].Text
	}
	return ""
}

// withHost is a listener that has something of a virtual host: of that of the domain, unless it says its own domains.
func withHost(domain string, has *policy.Node) *policy.Node {
	if firstDomain(has) == "" {
		has = merged(source.Wrap("domains", source.NewList(source.NewText(domain))), has)
	}
	return source.Wrap("route_config", source.Wrap("virtual_hosts", source.NewList(has)))
}

// withRoute is a virtual host that has a route.
func withRoute(route *policy.Node) *policy.Node {
	return source.Wrap("routes", source.NewList(route))
}

// merged is a node with what another one has too, as Istio merges a patch: it adds items to lists and fields to
// objects, and replaces other values.
func merged(n, patch *policy.Node) *policy.Node {
	switch {
	case n.Kind != patch.Kind:
		return patch
	case n.Kind == policy.List:
		return source.NewList(mergedItems(n.Items, patch.Items)...)
	case n.Kind != policy.Object:
		return patch
	}
	both := source.NewObject(slices.Clone(n.Fields)...)
	for _, f := range patch.Fields {
		isIt := func(has policy.Field) bool { // either may be written as in JSON
			return source.IsField(has.Name, f.Name) || source.IsField(f.Name, has.Name)
		}
		if i := slices.IndexFunc(both.Fields, isIt); i >= 0 {
			both.Fields[i].Value = merged(both.Fields[i].Value, f.Value)
		} else {
			both.Fields = append(both.Fields, f)
		}
	}
	return both
}

// mergedItems are the items of two lists. Of a virtual host, which is known by its first domain, they are one item.
func mergedItems(items, others []*policy.Node) []*policy.Node {
	list := slices.Clone(items)
	for _, other := range others {
		domain := firstDomain(other)
		isIt := func(n *policy.Node) bool { return domain != "" && firstDomain(n) == domain }
		if i := slices.IndexFunc(list, isIt); i >= 0 {
			list[i] = merged(list[i], withoutField(other, "domains"))
		} else {
			list = append(list, other)
		}
	}
	return list
}

// withoutField is an object without a field.
func withoutField(n *policy.Node, name string) *policy.Node {
	isIt := func(f policy.Field) bool { return source.IsField(f.Name, name) }
	return source.NewObject(slices.DeleteFunc(slices.Clone(n.Fields), isIt)...)
}
