package envoy

import (
	"slices"

	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// chooseSite is the listener whose configurations are imported. A filter that stands alone has the routes that are
// given for it.
func (imp *localImport) chooseSite(in *source.Document) (*envoyfile.Site, error) {
	routes := imp.options.Routes
	var beside *source.Document
	if routes != nil {
		var err error
		beside, err = envoyfile.OpenWhole(imp.Findings, *routes)
		if err != nil {
			return nil, err
		}
	}
	alone, isAlone := standsAlone(in)
	wants := func(s *envoyfile.Site) bool { return isLimitedLocally(s) || isAlone && s.HasLimits() }
	s, err := envoyfile.Choose(imp.Findings, envoyfile.FindSites(in, beside), imp.options.Listener, wants)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &envoyfile.Site{Routing: envoyfile.Routing{At: in.Top()}}
	}
	if isAlone {
		s.Filters = []envoyfile.Config{alone}
	}
	if routes != nil && s.Routing.At.File != routes.Name {
		imp.NoteImport(routes.Name + ": ignored: the listener has routes of its own, or these have no rate_limits")
	}
	return s, nil
}

// standsAlone finds a configuration that stands alone: the filter, its typed_config or what is in it.
func standsAlone(in *source.Document) (alone envoyfile.Config, ok bool) {
	config := source.FieldOf(in.Root, "typed_config")
	filter := envoyfile.ConfigAt(source.TextOf(in.Root, "name"), config, in.Top().In("typed_config"))
	for _, c := range []envoyfile.Config{filter, envoyfile.ConfigAt("", in.Root, in.Top())} {
		if isLocalFilter(c) {
			return c, true
		}
	}
	if limitsAnything(in.Root) || source.FieldOf(in.Root, "filter_enabled") != nil {
		return envoyfile.Config{TypeName: envoyfile.LocalType, Node: in.Root, At: in.Top()}, true
	}
	return envoyfile.Config{}, false
}

func isLocalFilter(c envoyfile.Config) bool { return envoyfile.IsA[*localv3.LocalRateLimit](c) }

// isLimitedLocally reports whether a site has such a filter with limits, or a route with one.
func isLimitedLocally(s *envoyfile.Site) bool {
	isLimit := func(c envoyfile.Config) bool { return isLocalFilter(c) && limitsAnything(c.Node) }
	isConfig := func(n *policy.Node) bool { return isLocalFilter(envoyfile.ConfigAt("", n, source.Place{})) }
	return slices.ContainsFunc(s.Filters, isLimit) || source.Contains(s.Routing.Node, isConfig)
}

// limitsAnything reports whether a configuration has a token bucket or descriptors. Otherwise it is
// there for the configurations of its routes.
func limitsAnything(n *policy.Node) bool {
	return source.FieldOf(n, "token_bucket") != nil || source.FieldOf(n, "descriptors") != nil
}
