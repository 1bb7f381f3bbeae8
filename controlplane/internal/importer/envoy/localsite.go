package envoy

import (
	"slices"

	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// chooseSite is the listener whose configurations are imported. A filter that stands alone has the routes that are
// given for it.
func (imp *localImport) chooseSite(in *source.Document) (*site, error) {
	files := []*source.Document{in}
	routes := imp.options.Routes
	if routes != nil {
		given, err := imp.openEnvoy(*routes)
		if err != nil {
			return nil, err
		}
		files = append(files, given)
	}
	alone, isAlone := standsAlone(in)
	wants := func(s *site) bool { return isLimitedLocally(s) || isAlone && s.hasLimits() }
	s, err := imp.choose(findSites(files...), wants)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &site{routing: routing{file: in.File}}
	}
	if isAlone {
		s.filters = []filterConfig{alone}
	}
	if routes != nil && s.routing.file != routes.Name {
		imp.NoteImport(routes.Name + ": ignored: the listener has routes of its own, or these have no rate_limits")
	}
	return s, nil
}

// standsAlone finds a configuration that stands alone: the filter, its typed_config or what is in it.
func standsAlone(in *source.Document) (alone filterConfig, ok bool) {
	config := source.FieldOf(in.Root, "typed_config")
	filter := filterConfigAt(source.TextOf(in.Root, "name"), config, in.Top().In("typed_config"))
	for _, c := range []filterConfig{filter, filterConfigAt("", in.Root, in.Top())} {
		if isLocalFilter(c) {
			return c, true
		}
	}
	if limitsAnything(in.Root) || source.FieldOf(in.Root, "filter_enabled") != nil {
		return filterConfig{typeName: localTypeName, node: in.Root, at: in.Top()}, true
	}
	return filterConfig{}, false
}

func isLocalFilter(c filterConfig) bool { return isA[*localv3.LocalRateLimit](c) }

// isLimitedLocally reports whether a site has such a filter with limits, or a route with one.
func isLimitedLocally(s *site) bool {
	isLimit := func(c filterConfig) bool { return isLocalFilter(c) && limitsAnything(c.node) }
	isConfig := func(n *policy.Node) bool { return isLocalFilter(filterConfigAt("", n, source.Place{})) }
	return slices.ContainsFunc(s.filters, isLimit) || source.Contains(s.routing.node, isConfig)
}

// limitsAnything reports whether a configuration has a token bucket or descriptors. Otherwise it is
// there for the configurations of its routes.
func limitsAnything(n *policy.Node) bool {
	return source.FieldOf(n, "token_bucket") != nil || source.FieldOf(n, "descriptors") != nil
}
