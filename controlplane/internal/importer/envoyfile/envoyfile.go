// Package envoyfile finds the listeners in files of Envoy, with their filters and routes. It knows where limits may
// stand, and not what they say: package envoy decodes them.
//
//	OpenWhole,   a configuration or a dump of Envoy, a part of one, or       envoyfile.go
//	Whole        EnvoyFilters of Istio: as the configuration of an Envoy
//	FindSites    its sites: each a listener with its routes, or routes that  site.go
//	             no listener has
//	Choose       one of the sites, by --listener if several have limits      site.go
//	Config       the configuration of a filter, in a site or for a route     site.go
//	Refuse...    says what a file is that is none of these                   refuse.go
//	RefuseTypos  rejects names that are spelled nearly as those that lead    refuse.go
//	             to limits; RefuseTyposOfLimits does so in a whole file
//	WhyNothing   says why there is no limit in a file                        refuse.go
package envoyfile

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// OpenWhole opens a configuration of Envoy, or a part of one as the whole.
func OpenWhole(to *draft.Findings, f source.File) (*source.Document, error) {
	in, err := source.Open(f)
	if err != nil {
		return nil, err
	}
	return Whole(to, in)
}

// Whole is the configuration of Envoy that a file has, or has a part of. The error has all problems so far, also those
// that are not of this file: the import ends.
func Whole(to *draft.Findings, in *source.Document) (*source.Document, error) {
	refuseForEnvoy(to, in)
	whole := &source.Document{File: in.File, Root: wholeRoot(to, in)}
	return whole, to.Err()
}

// wholeRoot is the root of a whole configuration that is made of EnvoyFilters, or of parts of one. Examples:
//
//	the file is                              the whole is
//	a virtual host: {routes: [...]}          {virtual_hosts: [it]}
//	a route: {match: ..., route: ...}        {virtual_hosts: [{routes: [it]}]}
//	an EnvoyFilter that patches a filter     {http_filters: [the filter]}
//	a configuration with listeners           it
func wholeRoot(to *draft.Findings, in *source.Document) *policy.Node {
	if filters := in.OfKind("EnvoyFilter"); len(filters) > 0 {
		return patched(to, filters)
	}
	switch list := in.All(); {
	case eachHasOneOf(list, "routes"):
		return source.Wrap("virtual_hosts", source.NewList(list...))
	case areRoutes(list):
		return source.Wrap("virtual_hosts", source.NewList(source.Wrap("routes", source.NewList(list...))))
	}
	return in.Root
}

// areRoutes reports whether each of a list is a route. A virtual host, and what has virtual_hosts, may have
// typed_per_filter_config too.
func areRoutes(list []*policy.Node) bool {
	return eachHasOneOf(list, "route", "typed_per_filter_config") &&
		!eachHasOneOf(list, "rate_limits", "domains", "virtual_hosts")
}

// eachHasOneOf reports whether a list has items, and each of them has one of the fields.
func eachHasOneOf(list []*policy.Node, fields ...string) bool {
	for _, n := range list {
		if !slices.ContainsFunc(fields, func(name string) bool { return source.FieldOf(n, name) != nil }) {
			return false
		}
	}
	return len(list) > 0
}

// patchedListener is a listener in the making: {http_filters: [...], route_config: {virtual_hosts: [...]}}.
type patchedListener struct {
	*draft.Findings
	root  *policy.Node   // without the hosts
	hosts []*policy.Node // in their order, each with what is merged into it
}

// patched is the listener that the patches of EnvoyFilters make. The paths of places start at it: no file has it.
func patched(to *draft.Findings, envoyFilters []source.Resource) *policy.Node {
	l := &patchedListener{Findings: to, root: source.Wrap("http_filters", source.NewList())}
	for _, e := range envoyFilters {
		for _, p := range source.ItemsOf(e.Node, "spec", "config_patches") {
			if value := source.FieldOf(p, "patch", "value"); value != nil {
				l.add(e.At, p, value)
			}
		}
	}
	for i, h := range l.hosts {
		if len(source.ItemsOf(h, "routes")) == 0 { // one stands for those of the host, which no patch has
			l.hosts[i] = merged(h, hostWithRoute(source.NewObject()))
		}
	}
	to.NoteImport("An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for " +
		"every request of the proxies that get the policy.")
	if i := l.indexOfHost("*"); len(l.hosts) > 1 && i >= 0 && hasRateLimitsOrLimiter(l.hosts[i]) {
		to.NoteImport("Limits in patches for all virtual hosts are here for those hosts that no other patch names: write " +
			"the same for the others.")
	}
	return l.built()
}

// add adds what a patch has at its place in the listener. The place is that of the EnvoyFilter.
//
//	apply_to                   its value
//	HTTP_FILTER                a filter
//	ROUTE_CONFIGURATION        the routing
//	VIRTUAL_HOST               a host, if it has domains; else something for the host that the patch names
//	HTTP_ROUTE                 a route of the host that the patch names
//	NETWORK_FILTER and others  what has http_filters or route_config, or something without limits
func (l *patchedListener) add(at source.Place, patch, value *policy.Node) {
	vhost := source.FieldOf(patch, "match", "route_configuration", "vhost")
	domain := source.TextOf(vhost, "name")
	switch applyTo := source.TextOf(patch, "apply_to"); {
	case applyTo == "HTTP_FILTER":
		l.merge(source.Wrap("http_filters", source.NewList(value)))
	case applyTo == "ROUTE_CONFIGURATION":
		if source.FieldOf(value, "rate_limits") != nil {
			l.Fail(at, "a ROUTE_CONFIGURATION has no rate_limits: its virtual_hosts and their routes have them")
		}
		l.merge(source.Wrap("route_config", value))
		l.mergeHost("", source.NewObject()) // so that there is a host for what the value says of all requests
	case applyTo == "VIRTUAL_HOST" && len(source.ItemsOf(value, "domains")) > 0:
		l.hosts = append(l.hosts, value)
	case applyTo == "VIRTUAL_HOST":
		l.mergeHost(domain, value)
	case applyTo == "HTTP_ROUTE":
		if name := source.TextOf(vhost, "route", "name"); name != "" {
			value = merged(value, source.Wrap("match", source.NewObject()))
			l.Note(at, "an EnvoyFilter is for the route "+name+", and does not say which requests that route takes: "+
				"its rules are off until they have a match")
		}
		l.mergeHost(domain, hostWithRoute(value))
	default:
		listeners := listenersIn(value)
		for _, n := range listeners {
			l.merge(n)
		}
		if len(listeners) == 0 && hasRateLimitsOrLimiter(value) {
			l.Note(at, "ignored: the limits in a patch of "+draft.Clip(applyTo, 100)+", which the import does not read")
		}
	}
}

// merge merges a part of a listener, and adds its hosts.
func (l *patchedListener) merge(value *policy.Node) {
	routing := source.FieldOf(value, "route_config")
	l.hosts = append(l.hosts, source.ItemsOf(routing, "virtual_hosts")...)
	l.root = merged(l.root, withoutField(value, "route_config"))
	if routing != nil {
		l.root = merged(l.root, source.Wrap("route_config", withoutField(routing, "virtual_hosts")))
	}
}

// listenersIn are the parts of a value that have filters or routes.
func listenersIn(value *policy.Node) (list []*policy.Node) {
	source.Walk(value, func(n *policy.Node) {
		if source.FieldOf(n, "http_filters") != nil || source.FieldOf(n, "route_config") != nil {
			list = append(list, n)
		}
	})
	return list
}

// mergeHost merges a value into the virtual host that Istio names by its domain, or in a way that stands for every
// request.
func (l *patchedListener) mergeHost(domain string, value *policy.Node) {
	isAnyName := strings.HasPrefix(domain, "*") && !strings.HasPrefix(domain, "*.")
	if domain == "" || isAnyName || strings.HasPrefix(domain, "inbound|") {
		domain = "*"
	}
	if i := l.indexOfHost(domain); i >= 0 {
		l.hosts[i] = merged(l.hosts[i], value)
		return
	}
	h := source.Wrap("domains", source.NewList(source.NewText(domain)))
	l.hosts = append(l.hosts, merged(h, value))
}

// indexOfHost is the index of the host whose first domain is this one; negative if there is none.
func (l *patchedListener) indexOfHost(domain string) int {
	return slices.IndexFunc(l.hosts, func(h *policy.Node) bool {
		domains := source.ItemsOf(h, "domains")
		return len(domains) > 0 && domains[0].Text == domain
	})
}

// hostWithRoute is what a host has of one route.
func hostWithRoute(route *policy.Node) *policy.Node {
	return source.Wrap("routes", source.NewList(route))
}

// built is the listener with its hosts.
func (l *patchedListener) built() *policy.Node {
	if len(l.hosts) == 0 {
		return l.root
	}
	routing := source.Wrap("virtual_hosts", source.NewList(l.hosts...))
	return merged(l.root, source.Wrap("route_config", routing))
}

// merged is a node with what another one has too, as Istio merges a patch: it adds items to lists and fields to
// objects, and replaces other values.
func merged(n, patch *policy.Node) *policy.Node {
	switch {
	case n.Kind != patch.Kind:
		return patch
	case n.Kind == policy.List:
		return source.NewList(slices.Concat(n.Items, patch.Items)...)
	case n.Kind != policy.Object:
		return patch
	}
	both := source.NewObject(slices.Clone(n.Fields)...)
	for _, f := range patch.Fields {
		isIt := func(has policy.Field) bool {
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

// withoutField is an object without a field.
func withoutField(n *policy.Node, name string) *policy.Node {
	isIt := func(f policy.Field) bool { return source.IsField(f.Name, name) }
	return source.NewObject(slices.DeleteFunc(slices.Clone(n.Fields), isIt)...)
}
