package importer

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// LocalRatelimit imports Envoy's local rate limit filter: a file with its
// configuration, or that of an Envoy that has it.
func LocalRatelimit(one []File, o Options) (Imported, error) {
	return run("Envoy's local rate limit filter", one, o, (*job).local)
}

// local makes rules of a filter alone, or of the listener that is chosen.
func (j *job) local() error {
	in := j.files[0]
	if err := in.asEnvoy(); err != nil {
		return err
	}
	if j.Routes != nil {
		given, err := j.openEnvoy(*j.Routes)
		if err != nil {
			return err
		}
		j.files = append(j.files, given)
	}
	alone, wants := in.alone(), limitedLocally
	if alone.node != nil {
		wants = func(s *site) bool { return s.limited() || limitedLocally(s) }
	}
	at, err := choose(sites(j.files...), j.Listener, wants)
	switch {
	case err != nil:
		return err
	case at == nil:
		at = &site{in: in}
	}
	if alone.node != nil {
		at.filters = []filterConfig{alone}
	}
	if j.Routes != nil && at.in != j.files[1] {
		j.add(place{}, j.Routes.Name+": nothing is made of these routes: the listener has routes of its own, or these have no rate_limits")
	}
	l := &localImport{job: j, hosts: j.hosts(at), levels: map[*localv3.LocalRateLimit][]*level{}}
	l.all(at.filters)
	if len(j.rules) == 0 && j.err() == nil {
		return in.nothing(in.root)
	}
	return nil
}

// alone finds a configuration that stands alone: the filter, its typed_config
// or what is in it.
func (in *source) alone() filterConfig {
	for _, c := range []filterConfig{in.config(textOf(in.root, "name"), fieldOf(in.root, "typed_config")), in.config("", in.root)} {
		if isLocal(c) {
			return c
		}
	}
	if hasBucket(in.root) || fieldOf(in.root, "filter_enabled") != nil {
		return filterConfig{in: in, message: localMessage, node: in.root}
	}
	return filterConfig{}
}

const localMessage = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"

func isLocal(c filterConfig) bool { return isA[*localv3.LocalRateLimit](c) }

// hasBucket reports whether a configuration limits anything. Otherwise it is
// there for the configurations of its routes.
func hasBucket(n *policy.Node) bool {
	return fieldOf(n, "token_bucket") != nil || fieldOf(n, "descriptors") != nil
}

func limitedLocally(s *site) bool {
	return slices.ContainsFunc(s.filters, func(c filterConfig) bool { return isLocal(c) && hasBucket(c.node) }) ||
		contains(s.routing, func(n *policy.Node) bool { return isLocal(s.in.config("", n)) })
}

// localImport makes rules of the configurations of one listener.
type localImport struct {
	*job
	hosts  []virtualHost
	levels map[*localv3.LocalRateLimit][]*level
}

// all makes the rules of the filters' configurations, and of those of routes.
func (l *localImport) all(filters []filterConfig) {
	var rest scope // requests of no route with a configuration of its own, or that switches the filter off
	var routes []*route
	switchesOff := func(c filterConfig) bool {
		return c.disabled && slices.ContainsFunc(filters, func(f filterConfig) bool { return f.name == c.name && f.message == localMessage })
	}
	own := func(r *route) *localv3.LocalRateLimit { return configOf[*localv3.LocalRateLimit](r.own) }
	isApart := func(r *route) bool { return own(r) != nil || slices.ContainsFunc(r.own, switchesOff) }
	for _, h := range l.hosts {
		for _, r := range h.routes {
			if own(r) != nil {
				routes = append(routes, r)
			}
			switch {
			case !isApart(r):
			case len(r.scope.match) == 0:
				rest.cannot("It is for the requests of routes without a configuration of their own, and an exempt cannot say which those " +
					"are.")
			default:
				rest.exempt = append(rest.exempt, r.scope.match)
				if len(r.scope.unknown) > 0 {
					rest.note("It leaves out more requests than there, where the condition of a route is one that an exempt cannot say.")
				}
			}
		}
	}
	for _, c := range slices.DeleteFunc(slices.Clone(filters), func(c filterConfig) bool { return !isLocal(c) }) {
		l.config(configOf[*localv3.LocalRateLimit]([]filterConfig{c}), rest, c.disabled, func(r *route) bool { return !isApart(r) })
	}
	for _, r := range routes {
		l.config(own(r), r.scope, false, func(other *route) bool { return r == other })
	}
	for _, levels := range l.levels {
		l.noteUnreached(levels)
	}
}

// config makes the rules of one configuration, for the requests of a scope and
// the routes that use accepts.
func (l *localImport) config(o *localv3.LocalRateLimit, requests scope, disabled bool, use func(*route) bool) {
	if !hasBucket(l.origins[o].node) {
		return // it is there for its routes
	}
	e := l.readEnforcement(o, 0, o.GetStatus())
	if disabled {
		e.off = true
		l.note(o, "disabled", "the filter is disabled, and its rules are off.")
	}
	if o.GetLocalClusterRateLimit() != nil {
		l.addUnlessCluster(l.at(o, "local_cluster_rate_limit"), "local_cluster_rate_limit: each Envoy counts for itself, and "+
			"the limit is not divided by their number: --scope cluster makes rules that count over all")
	}
	l.headers = cmp.Or(headersField(o.GetEnableXRatelimitHeaders()), l.headers)
	if l.levels[o] == nil {
		l.levels[o] = l.levelsOf(o)
	}
	var rules []rule
	for _, d := range l.requested(o, requests, use) {
		rules = append(rules, d.rules(localLeaves(l.levels[o], d.entries), l.reader)...)
	}
	if q := l.bucket(o.GetTokenBucket()); q != nil {
		d := descriptor{scope: requests}
		if all := o.GetAlwaysConsumeDefaultTokenBucket(); all == nil || all.GetValue() || d.others(rules) {
			name := cmp.Or(o.GetStatPrefix(), "local")
			rules = append(d.rules([]leaf{{name: name, quota: q, place: q.place}}, l.reader), rules...)
		} else {
			l.note(o, "token_bucket", "every request has a descriptor with a limit, so Envoy never uses this bucket, and there is no rule for it")
		}
	}
	for i := range rules {
		rules[i].identity = l.at(o, "")
	}
	if o.GetLocalRateLimitPerDownstreamConnection() {
		l.perConnection(l.at(o, "local_rate_limit_per_downstream_connection"), rules)
	}
	e.apply(rules, l.reader)
	l.rules = append(l.rules, rules...)
}

var connectionID = part{kind: "property", path: []string{"connection", "id"}}

// perConnection counts each connection for itself.
func (l *localImport) perConnection(at place, rules []rule) {
	text := "Envoy has a bucket for each connection. Here the key is the connection's id, and a record stays until " +
		"its bucket is full again."
	l.add(at, text)
	for i := range rules {
		r := &rules[i]
		r.Key = append([]part{connectionID}, r.Key...)
		for k := range r.Overrides {
			r.Overrides[k].patterns = slices.Insert(r.Overrides[k].patterns, 0, "*")
		}
		r.comments = append(r.comments, text)
	}
}

// levelsOf reads the descriptors of a configuration. Envoy keeps a number of
// values of an entry without one, to bound memory; newcomers are not denied for it.
func (l *localImport) levelsOf(o *localv3.LocalRateLimit) (list []*level) {
	for _, d := range o.GetDescriptors() {
		made := &level{place: l.at(d, ""), quota: l.bucket(d.GetTokenBucket())}
		if made.quota != nil {
			made.quota.shadow = d.GetShadowMode()
		}
		for _, e := range d.GetEntries() {
			p := pair{key: e.GetKey(), pattern: pattern{exactly, e.GetValue()}}
			if p.text == "" {
				p.kind = anyValue
				kept := cmp.Or(o.GetMaxDynamicDescriptors().GetValue(), 20)
				l.add(place{}, "Envoy keeps "+strconv.Itoa(int(kept))+" values of an entry without a value, and forgets the least "+
					"recently used one, which then starts with a full bucket. Here there is room for 65536 keys, and an evicted key does not "+
					"come back to a full bucket.")
			}
			made.entries = append(made.entries, p)
		}
		list = append(list, made)
	}
	return list
}

// requested are the descriptors of requests, by the filter's own rate_limits
// or those of its routes; without either it guesses them.
func (l *localImport) requested(o *localv3.LocalRateLimit, requests scope, use func(*route) bool) []descriptor {
	switch {
	case len(o.GetRateLimits()) > 0:
		return l.descriptors(o.GetRateLimits(), requests, 0)
	case len(l.hosts) == 0:
		return l.guess(l.levels[o], descriptor{})
	}
	return l.routeDescriptors(l.hosts, o.GetStage(), func(r *route) ([]*routev3.RateLimit, int32, bool) {
		return nil, int32(o.GetVhRateLimits()), use(r)
	})
}

// bucket reads a token bucket; nil where there is none.
func (r *reader) bucket(o *typev3.TokenBucket) *quota {
	if o == nil {
		return nil
	}
	q := &quota{place: r.at(o, ""), numbers: numbers{algorithm: "token_bucket", requests: 1, burst: uint64(o.GetMaxTokens())}}
	if n := o.GetTokensPerFill(); n != nil {
		q.requests = uint64(n.GetValue())
	}
	if q.burst == 0 {
		return &quota{numbers: numbers{per: "1s"}, place: q.place} // always denies, as there
	}
	if o.GetFillInterval() == nil {
		r.note(o, "", "the token bucket has no fill_interval: Envoy ignores it, and there is no rule for it")
		return nil
	}
	ns := int64(o.GetFillInterval().AsDuration())
	if ns < int64(50*time.Millisecond) || ns > limit.MaxPeriodNs {
		r.failField(o, "fill_interval", "must be a duration in seconds from 0.05s to "+
			policy.FormatDuration(limit.MaxPeriodNs)+", such as 60s")
		return nil
	}
	q.per = policy.FormatDuration(ns)
	return q
}
