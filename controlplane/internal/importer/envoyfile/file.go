// Package envoyfile finds the listeners in files of Envoy, with their filters and routes. It knows where limits may
// stand, and not what they say: package envoy decodes them.
//
//	Open, Whole  a configuration or a dump of Envoy, a part of one, or       file.go
//	             EnvoyFilters of Istio: as the configuration of an Envoy
//	FindSites    its sites: each a listener with its routes, or routes that  site.go
//	             no listener has
//	Choose       one of the sites, by --listener if several have limits      site.go
//	Config       the configuration of a filter, in a site or for a route     config.go
//	Refuse...    says what a file is that is none of these, and where a      refuse.go
//	             name is spelled wrongly
package envoyfile

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Open opens a configuration of Envoy, or a part of one as the whole.
func Open(to *draft.Draft, f source.File) (*source.Document, error) {
	in, err := source.Open(f)
	if err != nil {
		return nil, err
	}
	return Whole(to, in)
}

// Whole is the configuration of Envoy that a file has, or has a part of.
func Whole(to *draft.Draft, in *source.Document) (*source.Document, error) {
	refuseOthers(to, in)
	whole := &source.Document{File: in.File, Root: wholeOf(to, in)}
	return whole, to.Err()
}

// wholeOf makes the configuration of Envoy of EnvoyFilters and of parts of one. Examples:
//
//	the file is                              the whole is
//	a virtual host: {routes: [...]}          {virtual_hosts: [it]}
//	a route: {match: ..., route: ...}        {virtual_hosts: [{routes: [it]}]}
//	an EnvoyFilter that patches a filter     {http_filters: [the filter]}
//	a configuration with listeners           it
func wholeOf(to *draft.Draft, in *source.Document) *policy.Node {
	root := in.Root
	if filters := in.OfKind("EnvoyFilter"); len(filters) > 0 {
		return patched(to, filters)
	}
	list := root
	if root.Kind != policy.List {
		list = source.NewList(root)
	}
	// A virtual host, and what has virtual_hosts, may have typed_per_filter_config as a route has it.
	isAboveRoutes := eachHasOneOf(list, "rate_limits", "domains", "virtual_hosts")
	switch {
	case eachHasOneOf(list, "routes"):
		return source.Wrap("virtual_hosts", list)
	case eachHasOneOf(list, "route", "typed_per_filter_config") && !isAboveRoutes:
		routes := source.NewList()
		for _, n := range list.Items {
			if source.FieldOf(n, "match") == nil { // as a patch has it
				n = withMatch(n, everyRequest())
			}
			routes.Items = append(routes.Items, n)
		}
		return source.Wrap("virtual_hosts", source.NewList(source.Wrap("routes", routes)))
	}
	return root
}

// eachHasOneOf reports whether a list has items, and each of them has one of the fields.
func eachHasOneOf(list *policy.Node, fields ...string) bool {
	for _, n := range list.Items {
		if !slices.ContainsFunc(fields, func(name string) bool { return source.FieldOf(n, name) != nil }) {
			return false
		}
	}
	return len(list.Items) > 0
}

// patched is the listener that the patches of EnvoyFilters make.
func patched(to *draft.Draft, envoyFilters []source.Resource) *policy.Node {
	filters, hosts := source.NewList(), source.NewList()
	for _, e := range envoyFilters {
		for _, p := range source.ItemsOf(e.Node, "spec", "config_patches") {
			value := source.FieldOf(p, "patch", "value")
			vhost := source.FieldOf(p, "match", "route_configuration", "vhost")
			switch kind := source.TextOf(p, "apply_to"); {
			case value == nil:
			case kind == "HTTP_FILTER":
				filters.Items = append(filters.Items, value)
			case kind == "VIRTUAL_HOST", kind == "ROUTE_CONFIGURATION":
				h := hostOf(hosts, source.TextOf(vhost, "name"))
				h.Fields = append(h.Fields, value.Fields...)
			case kind == "HTTP_ROUTE":
				requests := everyRequest()
				if name := source.TextOf(vhost, "route", "name"); name != "" {
					requests = source.NewObject()
					to.Note(e.At, "an EnvoyFilter is for the route "+name+", and does not say which requests that route takes: "+
						"its rules are off until they have a match")
				}
				routes := source.FieldOf(hostOf(hosts, source.TextOf(vhost, "name")), "routes")
				routes.Items = append(routes.Items, withMatch(value, requests))
			}
		}
	}
	for _, h := range hosts.Items {
		if routes := source.FieldOf(h, "routes"); len(routes.Items) == 0 {
			routes.Items = []*policy.Node{withMatch(source.NewObject(), everyRequest())}
		}
	}
	to.NoteImport("An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for " +
		"every request of the proxies that get the policy.")
	listener := source.Wrap("http_filters", filters)
	if len(hosts.Items) > 0 {
		listener.Fields = append(listener.Fields, source.NewField("route_config", source.Wrap("virtual_hosts", hosts)))
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
		if source.ItemsOf(h, "domains")[0].Text == domain {
			return h
		}
	}
	domains := source.NewList(source.NewText(domain))
	h := source.NewObject(source.NewField("domains", domains), source.NewField("routes", source.NewList()))
	hosts.Items = append(hosts.Items, h)
	return h
}

// withMatch is a route with a match.
func withMatch(n, condition *policy.Node) *policy.Node {
	return source.NewObject(append(slices.Clip(n.Fields), source.NewField("match", condition))...)
}

func everyRequest() *policy.Node {
	return source.Wrap("prefix", source.NewText("/"))
}
