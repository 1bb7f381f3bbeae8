package importer

import (
	"cmp"
	"slices"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// LocalRatelimit imports Envoy's local rate limit filter: its configuration,
// or that of an Envoy that has it.
func LocalRatelimit(f File, o Options) (Imported, error) {
	n := &notes{}
	keys, err := o.parts()
	if err != nil {
		return Imported{}, err
	}
	in, node, err := open(f, n)
	if err != nil {
		return Imported{}, err
	}
	l := &localImport{in: in, routes: in, draft: &draft{from: "Envoy's local rate limit filter"}, notes: n, keys: keys}
	at, err := choose(in.sites(node), o.Listener, limitedLocally)
	if err != nil {
		return Imported{}, err
	}
	var filter *localv3.LocalRateLimit
	if at != nil {
		l.hosts = in.hosts(at)
		filter = config[*localv3.LocalRateLimit](in, at.filters, hasBucket)
	} else {
		filter = in.bareFilter(node)
		if o.Routes != nil {
			if l.hosts, l.routes, err = routesOf(*o.Routes, o.Listener, n); err != nil {
				return Imported{}, err
			}
		}
	}
	l.all(filter)
	for _, in := range []*source{l.routes, in} {
		if err := in.err(); err != nil {
			return Imported{}, err
		}
	}
	return finish(l.draft, n)
}

// routesOf reads the routes of another file.
func routesOf(f File, listener string, n *notes) ([]virtualHost, *source, error) {
	in, node, err := open(f, n)
	if err != nil {
		return nil, nil, err
	}
	at, err := choose(in.sites(node), listener, (*site).limited)
	return in.hosts(at), in, err
}

// bareFilter decodes a configuration that stands alone: the filter, its
// typed_config or what is in it.
func (in *source) bareFilter(n *policy.Node) *localv3.LocalRateLimit {
	alone := []filterConfig{configOf(fieldOf(n, "typed_config")), configOf(n)}
	if filter := config[*localv3.LocalRateLimit](in, alone, nil); filter != nil {
		return filter
	}
	if hasBucket(n) || fieldOf(n, "filter_enabled") != nil {
		return decodeOnce[*localv3.LocalRateLimit](in, n, "")
	}
	return nil
}

// hasBucket reports whether a configuration limits anything. Otherwise it is
// there for the configurations of its routes.
func hasBucket(n *policy.Node) bool {
	return fieldOf(n, "token_bucket") != nil || fieldOf(n, "descriptors") != nil
}

func limitedLocally(s *site) bool {
	isLocal := func(c filterConfig) bool { return isConfig[*localv3.LocalRateLimit](c) }
	return slices.ContainsFunc(s.filters, func(c filterConfig) bool { return isLocal(c) && hasBucket(c.node) }) ||
		contains(s.routing, func(n *policy.Node) bool { return isLocal(configOf(n)) })
}

// localImport makes rules of the configurations of one listener.
type localImport struct {
	in     *source // of the filter
	routes *source // of the routes
	hosts  []virtualHost
	draft  *draft
	notes  *notes
	keys   map[string]part
}

// all makes the rules of the filter's configuration, and of those of routes.
func (l *localImport) all(filter *localv3.LocalRateLimit) {
	own := func(r *hostRoute) *localv3.LocalRateLimit {
		return config[*localv3.LocalRateLimit](l.routes, r.own, nil)
	}
	var rest scope // requests of no route with a configuration of its own
	var routes []*hostRoute
	for _, h := range l.hosts {
		for _, r := range h.routes {
			switch {
			case own(r) == nil:
				continue
			case r.scope.match.empty():
				rest.notes = append(rest.notes, "A route with its own configuration takes all requests that no other route "+
					"takes. This rule should leave them out.")
			default:
				rest.exempt = append(rest.exempt, r.scope.match)
			}
			routes = append(routes, r)
		}
	}
	if filter != nil {
		l.config(filter, l.in, rest, func(r *hostRoute) bool { return own(r) == nil })
	}
	for _, route := range routes {
		l.config(own(route), l.routes, route.scope, func(r *hostRoute) bool { return r == route })
	}
}

// config makes the rules of one configuration, for the requests of a scope and
// the routes that use accepts.
func (l *localImport) config(o *localv3.LocalRateLimit, in *source, requests scope, use func(*hostRoute) bool) {
	if !hasBucket(in.origins[o].node) {
		return // it is there for its routes
	}
	e := in.readEnforcement(o, 0, o.GetStatus())
	l.draft.headers = cmp.Or(headersField(o.GetEnableXRatelimitHeaders()), l.draft.headers)
	var rules []rule
	var limited []match
	byKeys, made := descriptorsByKeys(o), map[*commonv3.LocalRateLimitDescriptor]bool{}
	for _, d := range l.descriptors(o, in, requests, use) {
		of := d.rules(in.localCells(byKeys, d.entries, made), l.notes)
		for k := range of {
			of[k].capacity = in.capacity(o, &of[k])
			limited = append(limited, limits(&of[k]))
		}
		rules = append(rules, of...)
	}
	if q := in.readBucket(o.GetTokenBucket()); q != nil {
		d := descriptor{scope: requests}
		if all := o.GetAlwaysConsumeDefaultTokenBucket(); all != nil && !all.GetValue() {
			if slices.ContainsFunc(limited, func(m match) bool { return m.empty() }) {
				d.notes = append(slices.Clone(d.notes), "Envoy uses this bucket only for requests without a descriptor, and "+
					"an exempt cannot say which those are.")
			} else {
				d.exempt = slices.Concat(d.exempt, limited)
			}
		}
		name := cmp.Or(o.GetStatPrefix(), "local")
		rules = append(d.rules([]cell{{name: name, quota: q, place: q.place}}, l.notes), rules...)
	} else if o.GetTokenBucket() != nil {
		in.note(o, "token_bucket", "the token bucket has no fill_interval: Envoy ignores it, and there is no rule for it")
	}
	for i := range rules {
		rules[i].identity = in.at(o).String()
	}
	if o.GetLocalRateLimitPerDownstreamConnection() {
		l.perConnection(in.atField(o, "local_rate_limit_per_downstream_connection"), rules)
	}
	e.apply(rules, l.notes)
	l.draft.rules = append(l.draft.rules, rules...)
	for _, d := range o.GetDescriptors() {
		if !made[d] {
			l.notes.add(in.at(d), "no rate_limits make this descriptor, so there is no rule for it")
		}
	}
}

// limits says for which requests a rule limits anything, empty where no match
// can.
func limits(r *rule) match {
	m := r.match.clone()
	for _, p := range r.key {
		switch {
		case p.kind == "header" && !m.header(p.name):
			m.headers = append(m.headers, headerMatch{p.name, "*"})
		case p.kind == "query", p.kind == "property":
			return match{}
		}
	}
	if len(r.exempt) > 0 || r.off || slices.ContainsFunc(r.overrides, func(o override) bool { return o.quota == nil }) {
		return match{}
	}
	return m
}

// perConnection counts each connection for itself.
func (l *localImport) perConnection(at place, rules []rule) {
	text := "Envoy has a bucket for each connection. Here the key is the connection's id, and a record stays until " +
		"its bucket is full again."
	l.notes.add(at, text)
	for i := range rules {
		r := &rules[i]
		r.key = append([]part{{kind: "property", path: []string{"connection", "id"}}}, r.key...)
		for k := range r.overrides {
			r.overrides[k].patterns = slices.Insert(r.overrides[k].patterns, 0, "*")
		}
		r.comments = append(r.comments, text)
	}
}

// capacity is what max_dynamic_descriptors says for rules whose keys come from
// requests.
func (in *source) capacity(o *localv3.LocalRateLimit, r *rule) uint64 {
	if len(r.key) == 0 || r.capacity > 0 {
		return r.capacity
	}
	n := o.GetMaxDynamicDescriptors().GetValue()
	if n == 0 {
		in.notes.add(place{}, "Envoy keeps 20 values of a descriptor whose value is empty, and forgets the least "+
			"recently used one, which then starts with a full bucket. Here there is room for 65536 keys, and an evicted "+
			"key does not come back to a full bucket.")
	} else {
		in.note(o, "max_dynamic_descriptors", "max_dynamic_descriptors: beyond it Envoy forgets a value, which then "+
			"starts with a full bucket. Here a new value starts from what evicted ones have used")
	}
	return min(uint64(n), policy.MaxCapacity)
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
		root := localTree(o)
		for _, keys := range root.sequences() {
			list = append(list, guessDescriptors(root, keys, l.keys, l.notes)...)
		}
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
				c = at.of[c.key].byValue[c.value]
			}
			at = c
		}
		at.quota = &quota{}
	}
	return root
}

// descriptorsByKeys finds the filter's descriptors by the keys of their entries.
func descriptorsByKeys(o *localv3.LocalRateLimit) map[string][]*commonv3.LocalRateLimitDescriptor {
	list := map[string][]*commonv3.LocalRateLimitDescriptor{}
	for _, d := range o.GetDescriptors() {
		name := joinKeys(d.GetEntries(), (*commonv3.RateLimitDescriptor_Entry).GetKey)
		list[name] = append(list[name], d)
	}
	return list
}

// joinKeys is one text for a list of keys. No key holds a control character.
func joinKeys[E any](entries []E, key func(E) string) string {
	var b strings.Builder
	for _, e := range entries {
		b.WriteString(key(e) + "\x00")
	}
	return b.String()
}

// localCells lists the cases of a descriptor: the filter's descriptors without
// an empty value first, then the others, each as a whole. It marks those that a
// request may be of as made.
func (in *source) localCells(byKeys map[string][]*commonv3.LocalRateLimitDescriptor, entries []entry,
	made map[*commonv3.LocalRateLimitDescriptor]bool) []cell {
	var exact, dynamic []cell
	for _, d := range byKeys[joinKeys(entries, func(e entry) string { return e.key })] {
		if !fits(d, entries) {
			continue
		}
		made[d] = true
		c := cell{place: in.at(d), quota: in.readBucket(d.GetTokenBucket())}
		open := false
		var names []string
		for i, e := range d.GetEntries() {
			names = append(names, tree{key: e.GetKey(), value: e.GetValue()}.name())
			open = open || e.GetValue() == ""
			switch {
			case entries[i].part == nil:
			case e.GetValue() == "":
				c.patterns = append(c.patterns, pattern{})
			default:
				c.patterns = append(c.patterns, pattern{exactly, e.GetValue()})
			}
		}
		c.shared = make([]bool, len(c.patterns))
		c.name = strings.Join(names, ".")
		if c.quota != nil {
			c.quota.shadow = d.GetShadowMode()
		}
		if open {
			dynamic = append(dynamic, c)
		} else {
			exact = append(exact, c)
		}
	}
	return append(append(exact, dynamic...), nothing(entries))
}

// fits reports whether a request whose entries have the keys of a descriptor
// may have its values too.
func fits(d *commonv3.LocalRateLimitDescriptor, entries []entry) bool {
	for i, e := range d.GetEntries() {
		if entries[i].part == nil && e.GetValue() != "" && e.GetValue() != entries[i].value {
			return false
		}
	}
	return true
}

// readBucket reads a token bucket; nil where there is none.
func (in *source) readBucket(o *typev3.TokenBucket) *quota {
	if o == nil {
		return nil
	}
	q := &quota{place: in.at(o), algorithm: "token_bucket", requests: 1, burst: uint64(o.GetMaxTokens())}
	if n := o.GetTokensPerFill(); n != nil {
		q.requests = uint64(n.GetValue())
	}
	if q.burst == 0 {
		return &quota{per: "1s", place: q.place} // always denies, as there
	}
	if o.GetFillInterval() == nil {
		return nil
	}
	ns := int64(o.GetFillInterval().AsDuration())
	if ns < int64(50*time.Millisecond) || ns > limit.MaxPeriodNs {
		in.failField(o, "fill_interval", "must be a duration in seconds from 0.05s to "+
			policy.FormatDuration(limit.MaxPeriodNs)+", such as 60s")
		return nil
	}
	q.per = policy.FormatDuration(ns)
	return q
}
