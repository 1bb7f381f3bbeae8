package envoy

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ReadLocal makes rules of Envoy's local rate limit filter.
func ReadLocal(d *draft.Draft, one []*source.Document, o Options) error {
	r := newReader(d, one, o)
	return cmp.Or(r.local(), r.keys.unused())
}

// local makes rules of a filter alone, or of the listener that is chosen.
func (r *reader) local() error {
	in := r.files[0]
	if err := r.asEnvoy(in); err != nil {
		return err
	}
	if r.options.Routes != nil {
		given, err := r.openEnvoy(*r.options.Routes)
		if err != nil {
			return err
		}
		r.files = append(r.files, given)
	}
	s, err := r.localSite(in)
	if err != nil {
		return err
	}
	if r.options.Routes != nil && s.routing.file != r.options.Routes.Name {
		r.NoteImport(r.options.Routes.Name + ": ignored: the listener has routes of its own, or these have no rate_limits")
	}
	l := newLocalImport(r, r.virtualHosts(s))
	l.addRules(s.filters)
	if len(r.Rules) == 0 && r.Err() == nil {
		return r.whyNothing(in)
	}
	return nil
}

// localSite is the listener that is chosen. A filter that stands alone has the routes that are
// given for it.
func (r *reader) localSite(in *source.Document) (*site, error) {
	alone := standsAlone(in)
	wants := func(s *site) bool { return isLimitedLocally(s) || alone.node != nil && s.hasLimits() }
	s, err := r.choose(findSites(r.files...), r.options.Listener, wants)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &site{routing: routing{file: in.File}}
	}
	if alone.node != nil {
		s.filters = []filterConfig{alone}
	}
	return s, nil
}

// standsAlone finds a configuration that stands alone: the filter, its typed_config or what is in it.
func standsAlone(in *source.Document) filterConfig {
	config := source.FieldOf(in.Root, "typed_config")
	filter := filterConfigAt(source.TextOf(in.Root, "name"), config, in.Top().In("typed_config"))
	for _, c := range []filterConfig{filter, filterConfigAt("", in.Root, in.Top())} {
		if isLocalFilter(c) {
			return c
		}
	}
	if hasBucket(in.Root) || source.FieldOf(in.Root, "filter_enabled") != nil {
		return filterConfig{typeName: localTypeName, node: in.Root, at: in.Top()}
	}
	return filterConfig{}
}

const localTypeName = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"

func isLocalFilter(c filterConfig) bool { return isA[*localv3.LocalRateLimit](c) }

// isLimitedLocally reports whether a site has such a filter with limits, or a route with one.
func isLimitedLocally(s *site) bool {
	isLimit := func(c filterConfig) bool { return isLocalFilter(c) && hasBucket(c.node) }
	isConfig := func(n *policy.Node) bool { return isLocalFilter(filterConfigAt("", n, source.Place{})) }
	return slices.ContainsFunc(s.filters, isLimit) || source.Contains(s.routing.node, isConfig)
}

// hasBucket reports whether a configuration limits anything. Otherwise it is
// there for the configurations of its routes.
func hasBucket(n *policy.Node) bool {
	return source.FieldOf(n, "token_bucket") != nil || source.FieldOf(n, "descriptors") != nil
}

// localImport makes rules of the configurations of one listener.
type localImport struct {
	reader *reader
	hosts  []virtualHost
	levels map[*localv3.LocalRateLimit][]*descriptor.Level // by levelsOf; decode has one pointer for each object

	all []*descriptor.Level // of all configurations, in the order in which rules were made of them
}

func newLocalImport(r *reader, hosts []virtualHost) *localImport {
	return &localImport{
		reader: r, hosts: hosts,
		levels: map[*localv3.LocalRateLimit][]*descriptor.Level{},
	}
}

// addRules makes the rules of the configurations that filters have, and that routes have for them. An example, in
// which the filter has the configuration F:
//
//	route                            configuration   its rules are for
//	/a, which has R                  R               the requests of /a
//	/b, which switches F off         none
//	/c, which has nothing of these   F               all requests but those of /a and /b, also those of no route
func (l *localImport) addRules(filters []filterConfig) {
	isOther := func(c filterConfig) bool { return !isLocalFilter(c) }
	local := localFilters(slices.DeleteFunc(slices.Clone(filters), isOther))
	ofFilters := extent{requests: l.requestsOf(local), filters: local}
	for _, c := range local {
		l.addConfig(c, ofFilters)
	}
	for _, h := range l.hosts {
		for _, each := range h.routes {
			own := slices.IndexFunc(each.configs, isLocalFilter)
			if own >= 0 && !local.areOffFor(each) {
				l.addConfig(each.configs[own], extent{requests: each.selection, route: each})
			}
		}
	}
	descriptor.NoteUnreached(l.reader.Findings, l.all)
}

// localFilters are the local filters of a listener.
type localFilters []filterConfig

// areOffFor reports whether a route switches one of the filters off.
func (list localFilters) areOffFor(each *route) bool {
	return slices.ContainsFunc(list, func(f filterConfig) bool { return each.isOff(f.name) })
}

// areReplacedFor reports whether a route has a configuration of its own, or switches one of the filters off.
func (list localFilters) areReplacedFor(each *route) bool {
	return slices.ContainsFunc(each.configs, isLocalFilter) || list.areOffFor(each)
}

// localConfig is the configuration of a filter, or of a route for it.
type localConfig struct {
	*localv3.LocalRateLimit
	at     source.Place
	extent extent
}

// extent says where a configuration holds. Its own rate_limits and its default bucket are for requests. The rate_limits
// of routes are for the requests of their route, and count only if the configuration holds for that.
type extent struct {
	requests request.Selection
	route    *route       // that has the configuration; nil if a filter has it
	filters  localFilters // of the listener, if a filter has the configuration
}

// holdsFor reports whether the configuration holds for a route.
func (e extent) holdsFor(each *route) bool {
	if e.route != nil {
		return each == e.route
	}
	return !e.filters.areReplacedFor(each)
}

// requestsOf selects the requests that the filters' configurations are for: all but those of routes that
// have their own, which may be to switch a filter off.
func (l *localImport) requestsOf(filters localFilters) (s request.Selection) {
	for _, h := range l.hosts {
		for _, each := range h.routes {
			if !filters.areReplacedFor(each) {
				continue
			}
			if len(each.selection.Match) == 0 {
				s.CannotMatch("they are those of routes without a configuration of their own")
				continue
			}
			if len(each.selection.WhyOff) > 0 {
				s.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
			}
			isElsewhere := func(m request.Match) bool { return !slices.ContainsFunc(s.Exempt, m.Equal) }
			if slices.ContainsFunc(each.selection.Exempt, isElsewhere) {
				s.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
			}
			s.Exempt = append(s.Exempt, each.selection.Match)
		}
	}
	return s
}

// addConfig makes the rules of one configuration, for the requests and routes that have it.
func (l *localImport) addConfig(config filterConfig, where extent) {
	if !hasBucket(config.node) {
		return // it is there for its routes
	}
	at := config.at
	r := l.reader
	c := localConfig{decode[*localv3.LocalRateLimit](r, config.node, at), at, where}
	enforced := r.readEnforcement(c, at, 0, c.GetStatus())
	if config.disabled {
		enforced.off = true
		r.Note(at, "the filter is disabled, and its rules are off")
	}
	if c.GetLocalClusterRateLimit() != nil && !r.Cluster {
		r.Note(at.In("local_cluster_rate_limit"), "each Envoy counts for itself, and the limit is not divided by their "+
			"number: --scope cluster makes rules that count over all")
	}
	r.Headers = cmp.Or(headersField(c.GetEnableXRatelimitHeaders()), r.Headers)
	rules := l.descriptorRules(c)
	rules = append(l.defaultBucket(c, rules), rules...)
	if c.GetLocalRateLimitPerDownstreamConnection() {
		r.countEachConnection(at, rules)
	}
	enforced.apply(rules)
	r.Rules = append(r.Rules, rules...)
}

// descriptorRules makes the rules for the descriptors that requests send, but not for the default bucket.
func (l *localImport) descriptorRules(c localConfig) (rules []*draft.Rule) {
	levels := l.levelsOf(c)
	for _, d := range l.sentFor(c, levels) {
		leaves := descriptor.LocalLeaves(levels, d.Entries)
		rules = append(rules, d.Rules(leaves, l.reader.Findings)...)
	}
	return rules
}

// defaultBucket is the rule for the bucket of all requests, or of the requests that no other rule
// limits. There is none without a bucket, or without such a request.
func (l *localImport) defaultBucket(c localConfig, limited []*draft.Rule) []*draft.Rule {
	q := l.reader.readBucket(c.GetTokenBucket(), c.at.In("token_bucket"))
	if q == nil {
		return nil
	}
	name := cmp.Or(c.GetStatPrefix(), "local")
	d := descriptor.Descriptor{Selection: c.extent.requests}
	takesAll := c.GetAlwaysConsumeDefaultTokenBucket() // nil means that it does
	if takesAll != nil && !takesAll.GetValue() && !d.ExemptLimited(limited) {
		descriptor.NoteNoRequest(l.reader.Findings, q.At, name)
		return nil
	}
	return d.Rules([]*descriptor.Leaf{descriptor.NewLeaf(name, q, q.At, d.Entries)}, l.reader.Findings)
}

// countEachConnection counts each connection for itself.
func (r *reader) countEachConnection(at source.Place, rules []*draft.Rule) {
	text := "Envoy has a bucket for each connection. Here the key is the connection's id, and a record stays until " +
		"its bucket is full again."
	r.NoteOfRule(at, text)
	for _, rule := range rules {
		rule.Key = append([]request.Part{request.ConnectionID}, rule.Key...)
		for k := range rule.Overrides {
			rule.Overrides[k].Patterns = slices.Insert(rule.Overrides[k].Patterns, 0, "*")
		}
		rule.CommentOnly(text)
	}
}

// levelsOf are the levels of a configuration. They are read once, as several routes may have the configuration.
func (l *localImport) levelsOf(c localConfig) []*descriptor.Level {
	if l.levels[c.LocalRateLimit] == nil {
		l.levels[c.LocalRateLimit] = l.reader.readLevels(c)
		l.all = append(l.all, l.levels[c.LocalRateLimit]...)
	}
	return l.levels[c.LocalRateLimit]
}

// readLevels makes a level of each descriptor of a configuration. Envoy keeps a number of values of an
// entry without one, to bound memory; newcomers are not denied for it.
func (r *reader) readLevels(c localConfig) (list []*descriptor.Level) {
	for i, d := range c.GetDescriptors() {
		at := c.at.Item("descriptors", i)
		made := &descriptor.Level{At: at, Order: i, Quota: r.readBucket(d.GetTokenBucket(), at.In("token_bucket"))}
		if made.Quota != nil {
			made.Quota.Shadow = d.GetShadowMode()
		}
		for _, e := range d.GetEntries() {
			p := descriptor.Pair{Key: e.GetKey(), Pattern: request.Exact(e.GetValue())}
			if p.Text == "" {
				p.Kind = request.AnyValue
				kept := cmp.Or(c.GetMaxDynamicDescriptors().GetValue(), 20)
				r.NoteImport("Envoy keeps " + strconv.Itoa(int(kept)) + " values of an entry without a value. It forgets the " +
					"least recently used one, which then starts with a full bucket. Here there is room for 65536 keys, and an " +
					"evicted key does not come back to a full bucket.")
			}
			made.Pairs = append(made.Pairs, p)
		}
		list = append(list, made)
	}
	return list
}

// sentFor lists what requests send where a configuration holds: by the rate_limits of the filter, or else by those
// of its routes. Without either it guesses.
func (l *localImport) sentFor(c localConfig, levels []*descriptor.Level) []descriptor.Descriptor {
	switch {
	case len(c.GetRateLimits()) > 0:
		return l.reader.descriptorsOf(limitsAt(c.GetRateLimits(), c.at), c.extent.requests, 0)
	case len(l.hosts) == 0:
		return l.reader.guess(levels)
	}
	return l.reader.routeDescriptors(l.hosts, c.GetStage(), func(each *route) ownLimits {
		return ownLimits{isOff: !c.extent.holdsFor(each), vhost: vhostLimits(c.GetVhRateLimits())}
	})
}

// readBucket reads a token bucket; nil if there is none.
func (r *reader) readBucket(o *typev3.TokenBucket, at source.Place) *draft.Quota {
	if o == nil {
		return nil
	}
	if o.GetMaxTokens() == 0 {
		return &draft.Quota{At: at, Numbers: draft.Windowed(0, "1s")} // always denies, as there
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
	return &draft.Quota{At: at, Numbers: draft.TokenBucket(perFill, policy.FormatDuration(ns), uint64(o.GetMaxTokens()))}
}
