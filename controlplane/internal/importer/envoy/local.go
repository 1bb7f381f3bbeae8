package envoy

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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

// addConfig makes the rules of one configuration. When it has those of all extents, it knows which of the limits no
// request comes to.
func (r *reader) addConfig(c *localConfig, hosts []*virtualHost) error {
	levels, bucket := r.readLimits(c)
	var all []*descriptor.Reached
	bucketIsReached := false
	for _, where := range c.extents(hosts) {
		sent, err := r.descriptorsIn(c, where, levels.List, hosts)
		if err != nil {
			return err
		}
		reached := levels.Rules(r.Findings, sent)
		all = append(all, reached)
		// It may leave out what the other rules limit. The policy has it before them, as it is for the most requests.
		if rule := c.bucketRule(bucket, where.requests, reached); rule != nil {
			bucketIsReached = true
			r.draft.Add(rule)
		}
		r.draft.Add(reached.Rules...)
	}
	if bucket != nil && !bucketIsReached {
		r.NoteNoRequest(bucket.At, bucket.Name)
	}
	levels.NoteUnreached(r.Findings, all...)
	return nil
}

// readLimits reads the limits of a configuration and how the filter enforces them. The default bucket lacks the
// requests that it is for; nil if there is none.
func (r *reader) readLimits(c *localConfig) (levels *descriptor.Levels, bucket *draft.Terms) {
	enforced := r.readEnforcement(c.filter, c, c.config.At, c.GetStatus())
	enforced.PerConnection = c.GetLocalRateLimitPerDownstreamConnection()
	if c.GetLocalClusterRateLimit() != nil && !r.draft.Cluster {
		r.Note(c.config.At.In("local_cluster_rate_limit"), "each Envoy counts for itself, and the limit is not "+
			"divided by their number: --scope cluster makes rules that count over all")
	}
	r.readAnswerHeaders(int32(c.GetEnableXRatelimitHeaders()))
	levels = descriptor.LocalLevels(r.readLevels(c), *enforced)
	if l := r.readBucket(c.GetTokenBucket(), c.config.At.In("token_bucket")); l != nil {
		bucket = &draft.Terms{Name: cmp.Or(c.GetStatPrefix(), "local"), At: l.At, Limit: l, Enforcement: *enforced}
	}
	return levels, bucket
}

// bucketRule is the rule of the default bucket for some requests; nil if there is none. With
// always_consume_default_token_bucket, as is usual, the bucket is for all of them. Else it is for those that no other
// rule limits.
func (c *localConfig) bucketRule(
	bucket *draft.Terms, requests request.Selection, others *descriptor.Reached,
) *draft.Rule {
	if bucket == nil {
		return nil
	}
	t := *bucket
	t.Requests = requests
	isForAll := c.GetAlwaysConsumeDefaultTokenBucket()
	takesAll := isForAll == nil || isForAll.GetValue()
	if !takesAll && !t.ExemptLimited(others.Rules, others.AreAll()) {
		return nil
	}
	return draft.NewRule(t)
}

// readLevels makes a level of each descriptor of a configuration. Envoy keeps a number of values of an
// entry without one, to bound memory; newcomers are not denied for it.
func (r *reader) readLevels(c *localConfig) (list []*descriptor.Level) {
	for i, d := range c.GetDescriptors() {
		at := c.config.At.Item("descriptors", i)
		l := &descriptor.Level{At: at, Order: i, Limit: r.readBucket(d.GetTokenBucket(), at.In("token_bucket"))}
		if l.Limit != nil {
			l.Limit.Shadow = d.GetShadowMode()
		}
		for _, e := range d.GetEntries() {
			p := descriptor.Pair{Key: e.GetKey(), Pattern: request.Exact(e.GetValue())}
			if e.GetValue() == "" {
				p.Pattern = request.Anything
				r.noteForgotten(c)
			}
			l.Pairs = append(l.Pairs, p)
		}
		list = append(list, l)
	}
	return list
}

// noteForgotten notes what becomes of the keys of an entry without a value, of which Envoy keeps some.
func (r *reader) noteForgotten(c *localConfig) {
	kept := cmp.Or(c.GetMaxDynamicDescriptors().GetValue(), 20)
	r.NoteImport("Envoy keeps " + strconv.Itoa(int(kept)) + " values of an entry without a value. It forgets the " +
		"least recently used one, which then starts with a full bucket. Here there is room for " +
		strconv.Itoa(policy.DefaultCapacity) + " keys, and an evicted key does not come back to a full bucket.")
}

// descriptorsIn lists what requests send where a configuration holds. The first row that holds counts:
//
//	a configuration with rate_limits   these, for all of the requests
//	no route is in the files           a guess
//	others                             those of the routes and their hosts, by the table of routeSends
func (r *reader) descriptorsIn(
	c *localConfig, where extent, levels []*descriptor.Level, hosts []*virtualHost,
) ([]descriptor.Descriptor, error) {
	own := r.readRateLimits(c.config.Node, c.config.At)
	switch {
	case len(own) > 0:
		return r.descriptorsOf([]sending{{own, where.requests}})
	case len(hosts) == 0:
		return r.guesser.guess(levels), nil
	}
	f := sender{stage: c.GetStage(), routes: map[*hostRoute]routeSettings{}}
	for _, route := range where.routes {
		f.routes[route] = routeSettings{vhost: vhostRateLimits(c.GetVhRateLimits())}
	}
	return r.descriptorsOf(r.sendingsOf(f, hosts))
}

// readBucket reads a token bucket; nil if there is none.
func (r *reader) readBucket(o *typev3.TokenBucket, at source.Place) *draft.Limit {
	if o == nil {
		return nil
	}
	if o.GetMaxTokens() == 0 {
		return &draft.Limit{At: at, Numbers: draft.Windowed(0, "1s")} // always denies, as there
	}
	if o.GetFillInterval() == nil {
		r.Note(at, "ignored: Envoy takes no token bucket without fill_interval")
		return nil
	}
	ns := int64(o.GetFillInterval().AsDuration())
	if ns < int64(50*time.Millisecond) || ns > limit.MaxPeriodNs {
		r.Fail(at.In("fill_interval"), "must be a duration in seconds from 0.05s to "+
			policy.FormatDuration(limit.MaxPeriodNs)+", such as 60s")
		return nil
	}
	perFill := uint64(1)
	if n := o.GetTokensPerFill(); n != nil {
		perFill = uint64(n.GetValue())
	}
	if perFill == 0 {
		r.Note(at, "ignored: Envoy takes no token bucket with tokens_per_fill 0")
		return nil
	}
	numbers := draft.TokenBucket(perFill, policy.FormatDuration(ns), uint64(o.GetMaxTokens()))
	return &draft.Limit{At: at, Numbers: numbers}
}
