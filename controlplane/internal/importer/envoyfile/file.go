// Package envoyfile finds the listeners in files of Envoy, with their filters and routes. It knows where limits may
// stand, and not what they say: package envoy decodes them.
//
//	OpenWhole,   a configuration or a dump of Envoy, a part of one, or       file.go,
//	Whole        EnvoyFilters of Istio: as the configuration of an Envoy     istio.go
//	FindSites    its sites: each a listener with its routes, or routes that  site.go
//	             no listener has
//	Choose       one of the sites, by --listener if several have limits      site.go
//	Config       the configuration of a filter, in a site or for a route     config.go
//	Refuse...    says what a file is, by its kind, that is none of these     kind.go
//	RefuseTypos  rejects names that are spelled nearly as those that lead    nothing.go
//	             to limits; RefuseTyposOfLimits does so in a whole file
//	WhyNothing   says why there is no limit in a file                        nothing.go
package envoyfile

import (
	"slices"

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
		routes := source.NewList()
		for _, n := range list {
			if source.FieldOf(n, "match") == nil { // as a patch has it
				n = withMatch(n, everyRequest())
			}
			routes.Items = append(routes.Items, n)
		}
		return source.Wrap("virtual_hosts", source.NewList(source.Wrap("routes", routes)))
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

// withMatch is a route with a match.
func withMatch(n, condition *policy.Node) *policy.Node {
	return source.NewObject(append(slices.Clip(n.Fields), source.NewField("match", condition))...)
}

func everyRequest() *policy.Node {
	return source.Wrap("prefix", source.NewText("/"))
}
