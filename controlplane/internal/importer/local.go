package importer

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// LocalRatelimit imports Envoy's local rate limit filter, from a file with the configuration
// of the filter or of a whole Envoy.
func LocalRatelimit(one []File, o Options) (Imported, error) {
	return run("Envoy's local rate limit filter", one, o, (*job).local)
}

// local makes rules of a filter alone, or of the listener that is chosen.
func (j *job) local() error {
	in := j.files[0]
	if err := j.asEnvoy(in); err != nil {
		return err
	}
	if j.options.Routes != nil {
		given, err := j.openEnvoy(*j.options.Routes)
		if err != nil {
			return err
		}
		j.files = append(j.files, given)
	}
	s, err := j.localSite(in)
	if err != nil {
		return err
	}
	if j.options.Routes != nil && s.file != j.options.Routes.Name {
		j.note(place{}, j.options.Routes.Name+": ignored: the listener has routes of its own, or these have no rate_limits")
	}
	l := &localImport{
		job: j, hosts: j.virtualHosts(s),
		levels: map[*localv3.LocalRateLimit][]*level{}, reached: map[*level]bool{},
	}
	l.addRules(s.filters)
	if len(j.draft.rules) == 0 && j.err() == nil {
		return j.whyNothing(in)
	}
	return nil
}

// localSite is the listener that is chosen. A filter that stands alone has the routes that are
// given for it.
func (j *job) localSite(in *source) (*site, error) {
	alone := in.alone()
	wants := func(s *site) bool { return isLimitedLocally(s) || alone.node != nil && s.hasLimits() }
	s, err := j.choose(findSites(j.files...), j.options.Listener, wants)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &site{file: in.file}
	}
	if alone.node != nil {
		s.filters = []filterConfig{alone}
	}
	return s, nil
}

// alone finds a configuration that stands alone: the filter, its typed_config or what is in it.
func (in *source) alone() filterConfig {
	filter := configAt(textOf(in.root, "name"), fieldOf(in.root, "typed_config"), in.top().in("typed_config"))
	for _, c := range []filterConfig{filter, configAt("", in.root, in.top())} {
		if isLocalFilter(c) {
			return c
		}
	}
	if hasBucket(in.root) || fieldOf(in.root, "filter_enabled") != nil {
		return filterConfig{message: localMessage, node: in.root, at: in.top()}
	}
	return filterConfig{}
}

const localMessage = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"

func isLocalFilter(c filterConfig) bool { return isA[*localv3.LocalRateLimit](c) }

// isLimitedLocally reports whether a site has such a filter with limits, or a route with one.
func isLimitedLocally(s *site) bool {
	return slices.ContainsFunc(s.filters, func(c filterConfig) bool { return isLocalFilter(c) && hasBucket(c.node) }) ||
		contains(s.routing, func(n *policy.Node) bool { return isLocalFilter(configAt("", n, place{})) })
}

// hasBucket reports whether a configuration limits anything. Otherwise it is
// there for the configurations of its routes.
func hasBucket(n *policy.Node) bool {
	return fieldOf(n, "token_bucket") != nil || fieldOf(n, "descriptors") != nil
}

// localImport makes rules of the configurations of one listener.
type localImport struct {
	*job
	hosts  []virtualHost
	levels map[*localv3.LocalRateLimit][]*level // of each configuration, as several routes may have one

	all     []*level        // of all configurations, in the order in which rules were made of them
	reached map[*level]bool // those to which some descriptor leads
}

// addRules makes the rules of the configurations that filters have, and that routes have for them.
func (l *localImport) addRules(filters []filterConfig) {
	filters = slices.DeleteFunc(slices.Clone(filters), func(c filterConfig) bool { return !isLocalFilter(c) })
	isOff := func(r *route) bool {
		return slices.ContainsFunc(filters, func(f filterConfig) bool { return r.isOff(f.name) })
	}
	hasOwn := func(r *route) bool { return slices.ContainsFunc(r.own, isLocalFilter) || isOff(r) }
	for _, c := range filters {
		l.addConfig(c, use{requests: l.requestsWithout(hasOwn), holdsFor: func(r *route) bool { return !hasOwn(r) }})
	}
	for _, h := range l.hosts {
		for _, r := range h.routes {
			if own := slices.IndexFunc(r.own, isLocalFilter); own >= 0 && !isOff(r) {
				l.addConfig(r.own[own], use{requests: r.selection, holdsFor: func(other *route) bool { return r == other }})
			}
		}
	}
	l.noteUnreached(l.all, l.reached)
}

// use says for which requests and routes a configuration holds.
type use struct {
	requests selection
	holdsFor func(*route) bool
}

// requestsWithout selects the requests that the filter's configuration is for: all but those of routes that
// have their own, which may be to switch the filter off.
func (l *localImport) requestsWithout(hasOwn func(*route) bool) (s selection) {
	for _, h := range l.hosts {
		for _, r := range h.routes {
			if !hasOwn(r) {
				continue
			}
			if len(r.selection.match) == 0 {
				s.cannotMatch("they are those of routes without a configuration of their own")
				continue
			}
			if len(r.selection.whyOff) > 0 {
				s.note("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
			}
			if slices.ContainsFunc(r.selection.exempt, func(m match) bool { return !slices.ContainsFunc(s.exempt, m.equal) }) {
				s.note("It leaves out more requests than there, because another route takes some of the exempt ones.")
			}
			s.exempt = append(s.exempt, r.selection.match)
		}
	}
	return s
}

// addConfig makes the rules of one configuration, for the requests and routes that have it.
func (l *localImport) addConfig(config filterConfig, where use) {
	if !hasBucket(config.node) {
		return // it is there for its routes
	}
	at := config.at
	filter := decode[*localv3.LocalRateLimit](l.reader, config.node, at)
	enforced := l.readEnforcement(filter, at, 0, filter.GetStatus())
	if config.disabled {
		enforced.off = true
		l.note(at, "the filter is disabled, and its rules are off")
	}
	if filter.GetLocalClusterRateLimit() != nil && !l.cluster {
		l.note(at.in("local_cluster_rate_limit"), "each Envoy counts for itself, and the limit is not divided by their "+
			"number: --scope cluster makes rules that count over all")
	}
	l.draft.headers = cmp.Or(headersField(filter.GetEnableXRatelimitHeaders()), l.draft.headers)
	rules := l.descriptorRules(filter, at, where)
	rules = append(l.defaultBucket(filter, at, where.requests, rules), rules...)
	for i := range rules {
		rules[i].identity = at
	}
	if filter.GetLocalRateLimitPerDownstreamConnection() {
		l.countEachConnection(at, rules)
	}
	enforced.apply(rules, l.reader)
	l.draft.rules = append(l.draft.rules, rules...)
}

// descriptorRules makes the rules for the descriptors that requests send, but not for the default bucket.
func (l *localImport) descriptorRules(filter *localv3.LocalRateLimit, at place, where use) (rules []rule) {
	if l.levels[filter] == nil {
		l.levels[filter] = l.readLevels(filter, at)
		l.all = append(l.all, l.levels[filter]...)
	}
	for _, d := range l.descriptors(filter, at, where) {
		leaves := localLeaves(l.levels[filter], d.entries)
		addLevels(l.reached, leaves)
		rules = append(rules, d.rules(leaves, l.reader)...)
	}
	return rules
}

// defaultBucket is the rule for the bucket of all requests, or of the requests that no other rule
// limits. There is none without a bucket, or without such a request.
func (l *localImport) defaultBucket(
	filter *localv3.LocalRateLimit, at place, requests selection, limited []rule,
) []rule {
	q := l.readBucket(filter.GetTokenBucket(), at.in("token_bucket"))
	if q == nil {
		return nil
	}
	name := cmp.Or(filter.GetStatPrefix(), "local")
	d := descriptor{selection: requests}
	takesAll := filter.GetAlwaysConsumeDefaultTokenBucket() // nil means that it does
	if takesAll != nil && !takesAll.GetValue() && !d.exemptLimited(limited) {
		l.noteNoRequest(q.at, name)
		return nil
	}
	return d.rules([]leaf{{name: name, quota: q, at: q.at}}, l.reader)
}

var connectionID = part{kind: kindProperty, path: []string{"connection", "id"}}

// countEachConnection counts each connection for itself.
func (l *localImport) countEachConnection(at place, rules []rule) {
	text := "Envoy has a bucket for each connection. Here the key is the connection's id, and a record stays until " +
		"its bucket is full again."
	l.add(note{at.problem(text), true})
	for i := range rules {
		r := &rules[i]
		r.Key = append([]part{connectionID}, r.Key...)
		for k := range r.Overrides {
			r.Overrides[k].patterns = slices.Insert(r.Overrides[k].patterns, 0, "*")
		}
		r.comments = append(r.comments, text)
	}
}

// readLevels makes a level of each descriptor of a configuration. Envoy keeps a number of values of an
// entry without one, to bound memory; newcomers are not denied for it.
func (l *localImport) readLevels(filter *localv3.LocalRateLimit, at place) (list []*level) {
	for i, d := range filter.GetDescriptors() {
		at := at.item("descriptors", i)
		made := &level{at: at, order: i, quota: l.readBucket(d.GetTokenBucket(), at.in("token_bucket"))}
		if made.quota != nil {
			made.quota.shadow = d.GetShadowMode()
		}
		for _, e := range d.GetEntries() {
			p := pair{key: e.GetKey(), pattern: pattern{exactly, e.GetValue()}}
			if p.text == "" {
				p.kind = anyValue
				kept := cmp.Or(filter.GetMaxDynamicDescriptors().GetValue(), 20)
				l.note(place{}, "Envoy keeps "+strconv.Itoa(int(kept))+" values of an entry without a value. It forgets the least "+
					"recently used one, which then starts with a full bucket. Here there is room for 65536 keys, and an evicted "+
					"key does not come back to a full bucket.")
			}
			made.pairs = append(made.pairs, p)
		}
		list = append(list, made)
	}
	return list
}

// descriptors lists what requests send: by the rate_limits of the filter, or else by those of its routes.
// Without either it guesses.
func (l *localImport) descriptors(filter *localv3.LocalRateLimit, at place, where use) []descriptor {
	switch {
	case len(filter.GetRateLimits()) > 0:
		return l.descriptorsOf(limitsAt(filter.GetRateLimits(), at), where.requests, 0)
	case len(l.hosts) == 0:
		return l.guess(l.levels[filter])
	}
	return l.routeDescriptors(l.hosts, filter.GetStage(), func(r *route) ownLimits {
		return ownLimits{isOff: !where.holdsFor(r), vhost: vhostLimits(filter.GetVhRateLimits())}
	})
}

// readBucket reads a token bucket; nil if there is none.
func (r *reader) readBucket(o *typev3.TokenBucket, at place) *quota {
	if o == nil {
		return nil
	}
	q := &quota{at: at, numbers: numbers{algorithm: "token_bucket", requests: 1, burst: uint64(o.GetMaxTokens())}}
	if n := o.GetTokensPerFill(); n != nil {
		q.requests = uint64(n.GetValue())
	}
	if q.burst == 0 {
		return &quota{at: at, numbers: numbers{per: "1s"}} // always denies, as there
	}
	if o.GetFillInterval() == nil {
		r.note(at, "ignored: Envoy takes no token bucket without fill_interval")
		return nil
	}
	ns := int64(o.GetFillInterval().AsDuration())
	if ns < int64(50*time.Millisecond) || ns > limit.MaxPeriodNs {
		r.fail(at.in("fill_interval"), "must be a duration in seconds from 0.05s to "+
			policy.FormatDuration(limit.MaxPeriodNs)+", such as 60s")
		return nil
	}
	q.per = policy.FormatDuration(ns)
	return q
}
