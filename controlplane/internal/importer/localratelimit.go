package importer

import (
	"cmp"
	"slices"
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// LocalRatelimit imports Envoy's local rate limit filter: its configuration,
// or that of an Envoy that has it.
func LocalRatelimit(f File, o Options) (Imported, error) {
	return run("Envoy's local rate limit filter", []File{f}, o, (*job).local)
}

// local makes rules of a filter alone, or of the listener that is chosen.
func (j *job) local() error {
	in := j.files[0]
	if err := in.asEnvoy(); err != nil {
		return err
	}
	if j.Routes != nil {
		given, err := openEnvoy(*j.Routes, j.notes)
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
		j.notes.add(place{}, j.Routes.Name+": nothing is made of these routes: the listener has routes of its own, or these have no rate_limits")
	}
	l := &localImport{job: j, in: in, routes: at.in, hosts: at.in.hosts(at), made: map[*commonv3.LocalRateLimitDescriptor]bool{}}
	l.all(at.filters)
	if len(j.rules) == 0 && j.notes.err() == nil {
		return in.nothing(in.root)
	}
	return nil
}

// alone finds a configuration that stands alone: the filter, its typed_config
// or what is in it.
func (in *source) alone() filterConfig {
	for _, c := range []filterConfig{configOf(textOf(in.root, "name"), fieldOf(in.root, "typed_config")), configOf("", in.root)} {
		if isConfig[*localv3.LocalRateLimit](c) {
			return c
		}
	}
	if hasBucket(in.root) || fieldOf(in.root, "filter_enabled") != nil {
		return filterConfig{message: localMessage, node: in.root}
	}
	return filterConfig{}
}

// hasBucket reports whether a configuration limits anything. Otherwise it is
// there for the configurations of its routes.
func hasBucket(n *policy.Node) bool {
	return fieldOf(n, "token_bucket") != nil || fieldOf(n, "descriptors") != nil
}

const localMessage = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"

func limitedLocally(s *site) bool {
	isLocal := isConfig[*localv3.LocalRateLimit]
	return slices.ContainsFunc(s.filters, func(c filterConfig) bool { return isLocal(c) && hasBucket(c.node) }) ||
		contains(s.routing, func(n *policy.Node) bool { return isLocal(configOf("", n)) })
}

// localImport makes rules of the configurations of one listener.
type localImport struct {
	*job
	in     *source // of the filter
	routes *source // of the routes
	hosts  []virtualHost
	made   map[*commonv3.LocalRateLimitDescriptor]bool // those that requests may be of
}

// all makes the rules of the filters' configurations, and of those of routes.
func (l *localImport) all(filters []filterConfig) {
	var rest scope // requests of no route with a configuration of its own, or that switches the filter off
	var routes []*hostRoute
	isLeft := func(c filterConfig) bool {
		return c.disabled && slices.ContainsFunc(filters, func(f filterConfig) bool { return f.name == c.name && f.message == localMessage })
	}
	for _, h := range l.hosts {
		for _, r := range h.routes {
			r.local = config[*localv3.LocalRateLimit](l.routes, r.own, nil)
			r.apart = r.local != nil || slices.ContainsFunc(r.own, isLeft)
			switch {
			case !r.apart:
			case len(r.scope.match) == 0:
				rest.cannot("It is for the requests of routes without a configuration of their own, and an exempt cannot say which those " +
					"are.")
			default:
				rest.exempt = append(rest.exempt, r.scope.match)
				if len(r.scope.unknown) > 0 {
					rest.note("It leaves out more requests than there, where the condition of a route is one that an exempt cannot say.")
				}
			}
			if r.local != nil {
				routes = append(routes, r)
			}
		}
	}
	for _, c := range filters {
		if isConfig[*localv3.LocalRateLimit](c) {
			l.config(decodeOnce[*localv3.LocalRateLimit](l.in, c.node), l.in, rest, c.disabled, func(r *hostRoute) bool { return !r.apart })
		}
	}
	for _, route := range routes {
		l.config(route.local, l.routes, route.scope, false, func(r *hostRoute) bool { return r == route })
	}
	for _, in := range l.files {
		for _, m := range in.decoded {
			o, _ := m.(*localv3.LocalRateLimit)
			for _, d := range o.GetDescriptors() {
				if !l.made[d] {
					in.note(d, "", "no rate_limits make this descriptor, so there is no rule for it")
				}
			}
		}
	}
}

// config makes the rules of one configuration, for the requests of a scope and
// the routes that use accepts.
func (l *localImport) config(o *localv3.LocalRateLimit, in *source, requests scope, disabled bool, use func(*hostRoute) bool) {
	if !hasBucket(in.origins[o].node) {
		return // it is there for its routes
	}
	e := in.readEnforcement(o, 0, o.GetStatus())
	if disabled {
		e.off = true
		in.note(o, "disabled", "the filter is disabled, and its rules are off.")
	}
	if o.GetLocalClusterRateLimit() != nil {
		in.notes.addUnlessCluster(in.at(o, "local_cluster_rate_limit"), "local_cluster_rate_limit: each Envoy counts for itself, and "+
			"the limit is not divided by their number: --scope cluster makes rules that count over all")
	}
	l.headers = cmp.Or(headersField(o.GetEnableXRatelimitHeaders()), l.headers)
	var rules []rule
	for _, d := range l.descriptors(o, in, requests, use) {
		rules = append(rules, d.rules(in.localCells(o, d.entries, l.made), l.notes)...)
	}
	in.noteForgetting(o)
	if q := in.readBucket(o.GetTokenBucket()); q != nil {
		d := descriptor{scope: requests}
		if all := o.GetAlwaysConsumeDefaultTokenBucket(); all == nil || all.GetValue() || d.others(rules) {
			name := cmp.Or(o.GetStatPrefix(), "local")
			rules = append(d.rules([]cell{{name: name, quota: q, place: q.place}}, l.notes), rules...)
		} else {
			in.note(o, "token_bucket", "every request has a descriptor with a limit, so Envoy never uses this bucket, and there is no rule for it")
		}
	} else if o.GetTokenBucket() != nil {
		in.note(o, "token_bucket", "the token bucket has no fill_interval: Envoy ignores it, and there is no rule for it")
	}
	for i := range rules {
		rules[i].identity = in.at(o, "")
	}
	if o.GetLocalRateLimitPerDownstreamConnection() {
		l.perConnection(in.at(o, "local_rate_limit_per_downstream_connection"), rules)
	}
	e.apply(rules, l.notes)
	l.rules = append(l.rules, rules...)
}

var connectionID = part{kind: "property", path: []string{"connection", "id"}}

// perConnection counts each connection for itself.
func (l *localImport) perConnection(at place, rules []rule) {
	text := "Envoy has a bucket for each connection. Here the key is the connection's id, and a record stays until " +
		"its bucket is full again."
	l.notes.add(at, text)
	for i := range rules {
		r := &rules[i]
		r.Key = append([]part{connectionID}, r.Key...)
		for k := range r.Overrides {
			r.Overrides[k].patterns = slices.Insert(r.Overrides[k].patterns, 0, "*")
		}
		r.comments = append(r.comments, text)
	}
}

// noteForgetting notes how many values Envoy keeps of an entry whose values come
// from requests. It bounds memory, and newcomers are not denied for it.
func (in *source) noteForgetting(o *localv3.LocalRateLimit) {
	isOpen := func(e *commonv3.RateLimitDescriptor_Entry) bool { return e.GetValue() == "" }
	if slices.ContainsFunc(o.GetDescriptors(), func(d *commonv3.LocalRateLimitDescriptor) bool { return slices.ContainsFunc(d.GetEntries(), isOpen) }) {
		kept := cmp.Or(o.GetMaxDynamicDescriptors().GetValue(), 20)
		in.notes.add(place{}, "Envoy keeps "+strconv.Itoa(int(kept))+" values of an entry without a value, and forgets the least "+
			"recently used one, which then starts with a full bucket. Here there is room for 65536 keys, and an evicted key does not "+
			"come back to a full bucket.")
	}
}

// descriptors are the descriptors of requests, by the filter's own rate_limits
// or those of its routes; without either it guesses them.
func (l *localImport) descriptors(o *localv3.LocalRateLimit, in *source, requests scope,
	use func(*hostRoute) bool) []descriptor {
	var list []descriptor
	switch {
	case len(o.GetRateLimits()) > 0:
		for _, own := range o.GetRateLimits() {
			for _, d := range in.readRateLimit(own, 0) {
				list = append(list, d.in(requests))
			}
		}
	case len(l.hosts) == 0:
		list = guessBelow([]*tree{localTree(o)}, descriptor{}, l.keys, l.notes)
	default:
		own := func(*hostRoute) ([]*routev3.RateLimit, int32) { return nil, int32(o.GetVhRateLimits()) }
		for _, a := range applyLimits(l.hosts, use, own) {
			for _, d := range l.routes.readRateLimit(a.limit, o.GetStage()) {
				list = append(list, d.in(a.scope))
			}
		}
	}
	return list
}

// localTree has the keys and values of the descriptors.
func localTree(o *localv3.LocalRateLimit) *tree {
	root := &tree{}
	for _, d := range o.GetDescriptors() {
		at := root
		for _, e := range d.GetEntries() {
			c := &tree{key: e.GetKey(), value: e.GetValue()}
			if !at.add(c) {
				c = at.of[pair{c.key, c.value}]
			}
			at = c
		}
		at.quota = &quota{}
	}
	return root
}
