// Package envoyfile finds the listeners in files of Envoy, with their filters and routes. It knows where limits may
// stand, and not what they say: package envoy decodes them.
//
//	OpenWhole,   a configuration or a dump of Envoy, a part of one, or       envoyfile.go,
//	Whole        EnvoyFilters of Istio: as the configuration of an Envoy     envoyfilter.go
//	FindSites    its sites: each a listener with its routes, or routes that  site.go
//	             no listener has
//	Wanted,      those that have limits, and one of them by --listener,      site.go
//	Choose       if there are several
//	Config       the configuration of a filter, in a site or for a route     envoyfile.go
//	Refuse...    rejects files that are none of these, and names that are    refuse.go
//	             spelled nearly as those that lead to limits
//	WhyNothing   says why there is no limit in a file                        refuse.go
package envoyfile

import (
	"slices"
	"strconv"
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
// that are not of this file: the import ends. Examples:
//
//	the file is                              the whole is
//	a virtual host: {routes: [...]}          {virtual_hosts: [it]}
//	a route: {match: ..., route: ...}        {virtual_hosts: [{routes: [it]}]}
//	an EnvoyFilter that patches a filter     {http_filters: [the filter]}
//	a configuration with listeners           it
func Whole(to *draft.Findings, in *source.Document) (*source.Document, error) {
	refuseForEnvoy(to, in)
	root := in.Root
	envoyFilters, list := in.OfKind("EnvoyFilter"), in.All()
	switch {
	case len(envoyFilters) > 0:
		root = patched(to, envoyFilters)
	case eachHasOneOf(list, "routes"):
		root = source.Wrap("virtual_hosts", source.NewList(list...))
	case areRoutes(list):
		root = source.Wrap("virtual_hosts", source.NewList(source.Wrap("routes", source.NewList(list...))))
	}
	return &source.Document{File: in.File, Root: root}, to.Err()
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

// Config is the configuration of a filter, which is decoded when it is needed.
type Config struct {
	Name     string // of the filter
	TypeName string // of its message
	Node     *policy.Node
	At       source.Place
	Disabled bool
}

// TypedConfig finds the configuration in a typed_config, which may be in a TypedStruct or in a
// FilterConfig of a route.
func TypedConfig(name string, n *policy.Node, at source.Place) Config {
	typeName := typeOf(source.TextOf(n, "@type"))
	switch {
	case strings.HasSuffix(typeName, ".TypedStruct"):
		typeName = typeOf(source.TextOf(n, "type_url"))
		return Config{Name: name, TypeName: typeName, Node: source.FieldOf(n, "value"), At: at.In("value")}
	case strings.HasSuffix(typeName, ".FilterConfig") && source.TextOf(n, "disabled") == "true":
		return Config{Name: name, Disabled: true, At: at} // Envoy ignores its config
	case strings.HasSuffix(typeName, ".FilterConfig"):
		return TypedConfig(name, source.FieldOf(n, "config"), at.In("config"))
	}
	return Config{Name: name, TypeName: typeName, Node: n, At: at}
}

// typeOf is the name of a message in an address of its type.
func typeOf(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// IsOf reports whether a configuration is of a message type.
func (c Config) IsOf(typeName string) bool { return c.Node != nil && c.TypeName == typeName }

// PerFilterConfigs lists the configurations of filters that a route or virtual host has.
func PerFilterConfigs(n *policy.Node, at source.Place) (list []Config) {
	configs := source.FieldOf(n, "typed_per_filter_config")
	if configs == nil {
		return nil
	}
	at = at.In("typed_per_filter_config")
	for _, f := range configs.Fields {
		below := at
		below.Path += "[" + strconv.Quote(f.Name) + "]"
		list = append(list, TypedConfig(f.Name, f.Value, below))
	}
	return list
}

// The messages of Envoy's filters.
const (
	LocalType    = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
	ServiceType  = "envoy.extensions.filters.http.ratelimit.v3.RateLimit"
	PerRouteType = ServiceType + "PerRoute" // of a route for the filter of ServiceType
)
