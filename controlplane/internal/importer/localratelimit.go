package importer

import (
	"slices"
	"strconv"
	"strings"
	"time"

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
	d := &draft{from: "Envoy's local rate limit filter"}
	at, err := choose(in.sites(node), o.Listener, func(s *site) bool { return s.limitedLocally() })
	if err != nil {
		return Imported{}, err
	}
	routes := in
	if at == nil {
		at = &site{in: in}
		if bare := in.bare(node); bare != nil {
			at.filters = []*object{bare}
		}
		if o.Routes != nil {
			if at.hosts, routes, err = routesOf(*o.Routes, o.Listener, n); err != nil {
				return Imported{}, err
			}
			at.in = routes
		}
	}
	l := &local{site: at, draft: d, notes: n, keys: keys, guess: len(at.hosts) == 0}
	l.all()
	if err := routes.close(); err != nil {
		return Imported{}, err
	}
	if err := in.close(); err != nil {
		return Imported{}, err
	}
	return finish(d, n)
}

// routesOf reads the routes of another file.
func routesOf(f File, listener string, n *notes) ([]virtualHost, *source, error) {
	in, node, err := open(f, n)
	if err != nil {
		return nil, nil, err
	}
	at, err := choose(in.sites(node), listener, (*site).limited)
	if err != nil || at == nil {
		return nil, in, err
	}
	return at.hosts, in, nil
}

// bare opens a configuration that stands alone: the filter, its typed_config
// or what is in it.
func (s *source) bare(n *policy.Node) *object {
	o := s.look(n)
	if c := s.filterConfig(o.get("typed_config")); c != nil {
		return c
	}
	if c := s.filterConfig(n); c != nil {
		return c
	}
	if o.has("token_bucket") || o.has("descriptors") || o.has("filter_enabled") {
		return s.object(n, "")
	}
	return nil
}

func (s *site) limitedLocally() bool {
	fits := func(o *object) bool { return o.has("token_bucket") || o.has("descriptors") }
	if s.filter("LocalRateLimit", fits) != nil {
		return true
	}
	for _, h := range s.hosts {
		for i := range h.routes {
			if h.routes[i].config("LocalRateLimit") != nil {
				return true
			}
		}
	}
	return false
}

// local makes rules of the configurations of one listener.
type local struct {
	site  *site
	draft *draft
	notes *notes
	keys  map[string]part
	guess bool // there are no routes to ask
}

func (l *local) all() {
	var rest scope // requests of no route with a configuration of its own
	type own struct {
		config *object
		scope  scope
	}
	var owns []own
	for _, h := range l.site.hosts {
		for i := range h.routes {
			r := &h.routes[i]
			c := r.config("LocalRateLimit")
			if c == nil {
				continue
			}
			owns = append(owns, own{c, r.scope})
			if r.scope.match.empty() {
				rest.notes = append(rest.notes, "Routes with a configuration of their own take the requests that no other route has; this rule should leave them out.")
			} else {
				rest.exempt = append(rest.exempt, r.scope.match)
			}
		}
	}
	for _, f := range l.site.filters {
		if f.path != "" && f.kind() != "LocalRateLimit" {
			continue
		}
		l.config(f, rest, func(r *route) bool { return r.config("LocalRateLimit") == nil })
	}
	for _, o := range owns {
		l.config(o.config, o.scope, func(r *route) bool { return r.config("LocalRateLimit") == o.config })
	}
}

// config makes the rules of one configuration.
func (l *local) config(o *object, in scope, use func(*route) bool) {
	if !o.has("token_bucket") && !o.has("descriptors") {
		return // it is there for its routes
	}
	o.heed()
	name := o.text("stat_prefix")
	if name == "" {
		name = "local"
	}
	o.ignore("vh_rate_limits", "descriptors", "rate_limits", "max_dynamic_descriptors")
	o.without("each Envoy counts for itself; the limit is not divided by their number", "local_cluster_rate_limit")
	o.without("nothing here marks requests that only a shadow rule denies", "request_headers_to_add_when_not_enforced")
	e := &enforcement{}
	e.readLocal(o)
	e.response(o, "status")
	if h := headersOf(o); h != "" {
		l.draft.headers = h
	}
	always := o.boolean("always_consume_default_token_bucket", true)
	var rules []rule
	descriptors := l.descriptors(o, in, use)
	var limited []match
	for i := range descriptors {
		d := &descriptors[i]
		cells := localCells(o, d.entries)
		made := d.rules(cells, l.notes)
		for k := range made {
			made[k].capacity = capacity(o, &made[k])
			limited = append(limited, limits(&made[k]))
		}
		rules = append(rules, made...)
	}
	if q := readBucket(o.child("token_bucket")); q != nil {
		d := descriptor{}
		d = d.in(in)
		if !always {
			d.exempt = slices.Concat(in.exempt, limited)
			if slices.ContainsFunc(limited, func(m match) bool { return m.empty() }) {
				d.exempt = in.exempt
				d.notes = append(d.notes, "Envoy takes this bucket only for requests without a descriptor; which those are, no exempt here can say.")
			}
		}
		made := d.rules([]cell{{name: name, quota: q, place: q.place}}, l.notes)
		rules = append(made, rules...)
	} else if o.has("token_bucket") {
		l.notes.add(o.at("token_bucket"), "the token bucket has no fill_interval: Envoy ignores it, and there is no rule for it")
	}
	for i := range rules {
		rules[i].identity = o.place.String()
	}
	if o.boolean("local_rate_limit_per_downstream_connection", false) {
		perConnection(o, rules)
	}
	e.apply(rules, l.notes)
	l.draft.rules = append(l.draft.rules, rules...)
	for _, d := range o.children("descriptors") {
		if !slices.ContainsFunc(descriptors, func(made descriptor) bool { return fits(d, made.entries) }) {
			d.ignoreAll()
			l.notes.add(d.place, "no rate_limits make this descriptor, so there is no rule for it")
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
func perConnection(o *object, rules []rule) {
	text := "Envoy has a bucket for each connection; here the key is the id of the connection, and a record stays until its bucket is full again."
	o.note("local_rate_limit_per_downstream_connection", text)
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
func capacity(o *object, r *rule) uint64 {
	if len(r.key) == 0 || r.capacity > 0 {
		return r.capacity
	}
	n := o.integer("max_dynamic_descriptors", 0)
	if n == 0 {
		o.in.notes.add(place{}, "Envoy keeps 20 values of a descriptor whose value is empty, and forgets the one not used for longest, which then starts anew. Here is room for 65536 keys, and none starts anew.")
	} else {
		o.note("max_dynamic_descriptors", "max_dynamic_descriptors: beyond it Envoy forgets a value, which then starts anew; here a new one starts from what others have used")
	}
	return min(n, policy.MaxCapacity)
}

// descriptors are the descriptors of requests, by the filter's own
// rate_limits, by those of its routes, or by guess.
func (l *local) descriptors(o *object, in scope, use func(*route) bool) []descriptor {
	var list []descriptor
	switch own := o.children("rate_limits"); {
	case len(own) > 0:
		for _, limit := range own {
			for _, d := range readRateLimit(limit, 0) {
				list = append(list, d.in(in))
			}
		}
	case l.guess:
		root := localTree(o)
		for _, keys := range root.sequences() {
			list = append(list, guessDescriptors(root, keys, l.keys, l.notes)...)
		}
	default:
		for _, a := range l.site.applied("LocalRateLimit", use) {
			for _, d := range readRateLimit(l.site.in.object(a.limit, "rate_limits"), o.integer("stage", 0)) {
				list = append(list, d.in(a.scope))
			}
		}
	}
	return list
}

// localTree has the keys and values of the descriptors.
func localTree(o *object) *tree {
	root := &tree{}
	for _, d := range o.children("descriptors") {
		at := root
		for _, e := range d.children("entries") {
			c := &tree{key: e.text("key"), value: e.text("value")}
			if !at.add(c) {
				c = at.of[c.key].byValue[c.value]
			}
			at = c
		}
		at.quota = &quota{}
	}
	return root
}

// localCells lists the cases of a descriptor: the filter's descriptors without
// an empty value first, then the others, each as a whole.
func localCells(o *object, entries []entry) []cell {
	var exact, dynamic []cell
	for _, d := range o.children("descriptors") {
		if !fits(d, entries) {
			continue
		}
		c := cell{place: d.place, quota: readBucket(d.child("token_bucket"))}
		open := false
		var names []string
		for i, e := range d.children("entries") {
			t := tree{key: e.text("key"), value: e.text("value")}
			names = append(names, t.name())
			open = open || t.value == ""
			switch {
			case entries[i].part == nil:
			case t.value == "":
				c.patterns = append(c.patterns, pattern{})
			default:
				c.patterns = append(c.patterns, pattern{exactly, t.value})
			}
		}
		c.shared = make([]bool, len(c.patterns))
		c.name = strings.Join(names, ".")
		if shadow := d.boolean("shadow_mode", false); c.quota != nil {
			c.quota.shadow = shadow
		}
		if open {
			dynamic = append(dynamic, c)
		} else {
			exact = append(exact, c)
		}
	}
	return append(append(exact, dynamic...), nothing(entries))
}

// fits reports whether a request with these entries may be of a descriptor of
// the filter: they are as many, with the same keys, and with its values.
func fits(d *object, entries []entry) bool {
	list := d.children("entries")
	if len(list) != len(entries) {
		return false
	}
	for i, e := range list {
		value := e.text("value")
		if e.text("key") != entries[i].key || entries[i].part == nil && value != "" && value != entries[i].value {
			return false
		}
	}
	return true
}

// readBucket reads a TokenBucket; nil where there is none.
func readBucket(o *object) *quota {
	if o == nil {
		return nil
	}
	q := &quota{algorithm: "token_bucket", requests: o.integer("tokens_per_fill", 1), burst: o.integer("max_tokens", 0), place: o.place}
	if q.burst == 0 {
		o.ignore("fill_interval")
		return &quota{per: "1s", place: o.place} // always denies, as there
	}
	text := o.text("fill_interval")
	if text == "" {
		return nil
	}
	ns, err := readDuration(text)
	if err != nil || ns < int64(50*time.Millisecond) {
		o.fail("fill_interval", "must be a duration in seconds from 0.05s, such as 60s, not "+strconv.Quote(text))
		return nil
	}
	q.per = policy.FormatDuration(ns)
	return q
}

// readDuration reads a duration of protocol buffers: seconds with an s.
func readDuration(text string) (int64, error) {
	if _, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64); err != nil || !strings.HasSuffix(text, "s") {
		return 0, strconv.ErrSyntax
	}
	return policy.ParseDuration(text)
}
