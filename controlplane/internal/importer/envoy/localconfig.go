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
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// localConfig is a configuration with limits, of a filter or of routes for it. In each of its extents the default
// bucket is for the requests. Its other limits are for those that send their descriptors: see descriptorsIn.
type localConfig struct {
	*localv3.LocalRateLimit
	config envoyfile.Config
	filter *listenerFilter
	routes []*hostRoute // for which the filter works by it
}

// localConfigs are the configurations that the filters have, and that routes have for them. Routes have the same one
// where it is that of their virtual host. An example, in which the filter one has the configuration F, and two has G:
//
//	route                              one works by   two works by
//	/a, which has R for one            R              G
//	/b, which switches one off                        G
//	/c, which has nothing for either   F              G
func (r *reader) localConfigs(filters []*listenerFilter, hosts []*virtualHost) (list []*localConfig) {
	listed := func(f *listenerFilter, c envoyfile.Config) *localConfig {
		isIt := func(known *localConfig) bool { return known.filter == f && known.config.Node == c.Node }
		if i := slices.IndexFunc(list, isIt); i >= 0 {
			return list[i]
		}
		known := &localConfig{decode[*localv3.LocalRateLimit](r, c.Node, c.At), c, f, nil}
		list = append(list, known)
		return known
	}
	for _, f := range filters {
		if hasBuckets(f.config.Node) { // else it is there for its routes
			listed(f, f.config)
		}
	}
	for _, route := range routesOf(hosts) {
		for _, f := range filters {
			if c, works := f.configFor(route); works && hasBuckets(c.Node) {
				known := listed(f, c)
				known.routes = append(known.routes, route)
			}
		}
	}
	return list
}

// extent is where a configuration holds: for which requests, and the routes that these come to. They may come to none.
type extent struct {
	routes   []*hostRoute
	requests request.Selection
}

// extents are where the configuration holds: each of its routes by itself. But the filter's own holds for all requests
// except those of other routes, also for those of no route. In the example of localConfigs:
//
//	configuration   extents
//	F               all requests but those of /a and /b, with the route /c
//	G               all requests, with all routes
//	R               those of /a, with that route
//
// If F is that of a filter that works whereEnabled, it has the extent of each route that enables it.
func (c *localConfig) extents(hosts []*virtualHost) (list []extent) {
	if c.config == c.filter.config && c.filter.worksWhere != whereEnabled {
		return []extent{{c.routes, c.requestsOfFilter(hosts)}}
	}
	for _, route := range c.routes {
		list = append(list, extent{[]*hostRoute{route}, route.selection})
	}
	return list
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
