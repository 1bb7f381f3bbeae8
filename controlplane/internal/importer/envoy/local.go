package envoy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ReadLocal makes rules of Envoy's local rate limit filter.
func ReadLocal(d *draft.Draft, file *source.Document, o Options) error {
	return read(d, o, func(r *reader) error { return r.readLocal(file) })
}

// readLocal makes rules of a filter alone, or of the listener that is chosen.
func (r *reader) readLocal(file *source.Document) error {
	in, err := envoyfile.Whole(r.Findings, file)
	if err != nil {
		return err
	}
	s, err := r.chooseSite(in)
	if err != nil {
		return err
	}
	filters, hosts := filtersOf(s, localFilter), r.virtualHosts(s)
	for _, f := range filters {
		if hasBuckets(f.config.Node) {
			r.noteDisabled(f)
		}
	}
	r.noteUnusedConfigs(filters, hosts)
	for _, c := range r.localConfigs(filters, hosts) {
		if err := r.addConfig(c, hosts); err != nil {
			return err
		}
	}
	if r.draft.IsEmpty() && r.Err() == nil {
		envoyfile.RefuseTypos(r.Findings, in)
		if !hasLocalLimits(s) { // else the import has read its limits, and notes say why it made no rule
			return envoyfile.WhyNothing(in)
		}
	}
	return nil
}

// chooseSite is the listener whose configurations are imported. A filter that stands alone has the routes that are
// given for it.
func (r *reader) chooseSite(in *source.Document) (*envoyfile.Site, error) {
	routes := r.options.Routes
	var beside *source.Document
	if routes != nil {
		var err error
		beside, err = envoyfile.OpenWhole(r.Findings, *routes)
		if err != nil {
			return nil, err
		}
	}
	alone, isAlone := standsAlone(in)
	wants := func(s *envoyfile.Site) bool { return hasLocalLimits(s) || isAlone && s.HasRateLimits() }
	s := &envoyfile.Site{Routing: envoyfile.Routing{At: in.Top()}} // of no listener
	if list := envoyfile.Wanted(envoyfile.FindSites(in, beside), wants); len(list) > 0 {
		var err error
		s, err = envoyfile.Choose(list, r.options.Listener)
		if err != nil {
			return nil, err
		}
		s.NoteMissingRoutes(r.Findings)
	}
	if isAlone {
		s.Filters = []envoyfile.Config{alone}
	}
	if routes != nil && s.Routing.At.File != routes.Name {
		r.NoteImport(routes.Name + ": ignored: the listener has routes of its own, or these have no rate_limits")
	}
	return s, nil
}

// standsAlone finds a configuration that stands alone: the filter, its typed_config or what is in it.
func standsAlone(in *source.Document) (alone envoyfile.Config, ok bool) {
	config := source.FieldOf(in.Root, "typed_config")
	filter := envoyfile.TypedConfig(source.TextOf(in.Root, "name"), config, in.Top().In("typed_config"))
	for _, c := range []envoyfile.Config{filter, envoyfile.TypedConfig("", in.Root, in.Top())} {
		if c.IsOf(envoyfile.LocalType) {
			return c, true
		}
	}
	if hasBuckets(in.Root) || source.FieldOf(in.Root, "filter_enabled") != nil {
		return envoyfile.Config{TypeName: envoyfile.LocalType, Node: in.Root, At: in.Top()}, true
	}
	return envoyfile.Config{}, false
}

// hasLocalLimits reports whether a site has such a filter with limits, or a route with one.
func hasLocalLimits(s *envoyfile.Site) bool {
	isLimit := func(c envoyfile.Config) bool { return c.IsOf(envoyfile.LocalType) && hasBuckets(c.Node) }
	isConfig := func(n *policy.Node) bool {
		return envoyfile.TypedConfig("", n, source.Place{}).IsOf(envoyfile.LocalType)
	}
	return slices.ContainsFunc(s.Filters, isLimit) || source.Contains(s.Routing.Node, isConfig)
}

// hasBuckets reports whether a configuration has a token bucket or descriptors. Otherwise it is
// there for the configurations of its routes.
func hasBuckets(n *policy.Node) bool {
	return source.FieldOf(n, "token_bucket") != nil || source.FieldOf(n, "descriptors") != nil
}
