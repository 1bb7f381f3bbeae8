package importer

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// draft is the policy before it is written.
type draft struct {
	from    string // "envoyproxy/ratelimit"
	domain  string
	headers string
	cluster bool // the rules get scope cluster
	rules   []rule
}

// rule is a rule before it is written; empty fields are left out.
type rule struct {
	name, counter string
	comments      []string
	match         match
	exempt        []match
	key           []part
	quota         *quota
	overrides     []override
	cost          string
	countDenied   bool
	scope         string // cluster, or empty
	leaseOff      bool
	off           bool
	response      string
	identity      string // only rules of one identity may share a counter
}

// override gives keys other numbers; without a quota they are unlimited.
type override struct {
	patterns []string
	quota    *quota
}

// quota is one limit and how it is enforced.
type quota struct {
	algorithm string // token_bucket, or empty
	requests  uint64
	per       string
	burst     uint64
	unlimited bool
	shadow    bool
	percent   uint64 // 0 = all
	notes     []string
	unknown   []string // why its rule is off
	place     place
}

func (o *override) write() string {
	then := "unlimited: true"
	if o.quota != nil {
		then = "limits: [" + o.quota.write() + "]"
	}
	return "{key: " + flowList(o.patterns) + ", " + then + "}"
}

// class is what a rule and its overrides have in common: a window and a mode.
func (q *quota) class() class {
	return class{q.algorithm, q.per, q.shadow, q.percent}
}

type class struct {
	algorithm, per string
	shadow         bool
	percent        uint64
}

func (q *quota) write() string {
	requests := strconv.FormatUint(q.requests, 10)
	if q.algorithm == "" {
		return requests + "/" + q.per
	}
	if q.burst == q.requests {
		return "{requests: " + requests + ", per: " + q.per + "}"
	}
	return "{requests: " + requests + ", per: " + q.per + ", burst: " + strconv.FormatUint(q.burst, 10) + "}"
}

// nameRules makes the names unique. Rules that had one name share a counter
// where they can, because their requests had one counter.
func (d *draft) nameRules() {
	taken, first, next := map[string]bool{}, map[string]*rule{}, map[string]int{}
	for i := range d.rules {
		r := &d.rules[i]
		if r.name == "" {
			r.name = "rule"
		}
		base := r.name
		for taken[r.name] {
			next[base] = max(next[base]+1, 2)
			r.name = clip(base, policy.MaxNameBytes-5) + "-" + strconv.Itoa(next[base])
		}
		taken[r.name] = true
		switch other := first[base]; {
		case other == nil:
			first[base] = r
		case !r.off && !other.off && other.counts(r):
			r.counter = other.name
		}
	}
}

// overAll gives the rules scope cluster, except those of a connection, which one Envoy has.
// Rules of one counter lease alike, and not at all if one of them counts denials or allows
// another number: units of the one would not do for the other.
func (d *draft) overAll() {
	first, off := map[string]*rule{}, map[string]bool{}
	of := func(r *rule) string { return cmp.Or(r.counter, r.name) }
	for i := range d.rules {
		r := &d.rules[i]
		if slices.ContainsFunc(r.key, connectionID.is) {
			continue
		}
		r.scope = string(policy.ScopeCluster)
		other := cmp.Or(first[of(r)], r)
		first[of(r)] = other
		off[of(r)] = off[of(r)] || r.countDenied || r.quota.write() != other.quota.write() ||
			!slices.EqualFunc(r.overrides, other.overrides, func(a, b override) bool { return a.write() == b.write() })
	}
	for i := range d.rules {
		d.rules[i].leaseOff = off[of(&d.rules[i])]
	}
}

// counts reports whether two rules may share a counter.
func (r *rule) counts(other *rule) bool {
	return slices.EqualFunc(r.key, other.key, part.is) && r.quota.algorithm == other.quota.algorithm &&
		r.quota.per == other.quota.per && r.identity == other.identity
}

// clip makes text fit for a rule's name: printable, without space at its ends,
// at most size bytes long.
func clip(text string, size int) string {
	text = strings.TrimSpace(printable(text))
	if len(text) > size {
		text = strings.TrimSpace(strings.ToValidUTF8(text[:size], ""))
	}
	return text
}

// write writes the policy, with the notes that are not about one rule at its
// head.
func (d *draft) write(notes []policyfile.Problem) []byte {
	var b strings.Builder
	w := &writer{b: &b}
	w.comment("", "Imported from "+d.from+". Read the comments: they say what differs.")
	ofRules := map[string]bool{}
	for _, r := range d.rules {
		for _, c := range r.comments {
			ofRules[c] = true
		}
	}
	for _, n := range notes {
		if !ofRules[n.Message] {
			at := ""
			if n.Line > 0 {
				at = filepath.Base(n.File) + ":" + strconv.Itoa(n.Line) + ": "
			}
			w.comment("", "- "+at+n.Message)
		}
	}
	w.line("version: 1")
	w.field("", "domain", scalarOrNone(d.domain))
	w.field("", "headers", d.headers)
	w.line("rules:")
	for i := range d.rules {
		d.rules[i].write(w)
	}
	return []byte(b.String())
}

func (r *rule) write(w *writer) {
	for _, c := range r.comments {
		w.comment("  ", c)
	}
	w.line("  - name: " + scalar(r.name))
	const in = "    "
	w.field(in, "counter", scalarOrNone(r.counter))
	w.field(in, "scope", r.scope)
	if r.leaseOff {
		w.field(in, "lease", `"off"`)
	}
	if !r.match.empty() {
		w.field(in, "match", r.match.write())
	}
	w.list(in, "exempt", len(r.exempt), func(i int) string { return r.exempt[i].write() })
	if len(r.key) > 0 {
		parts := make([]string, len(r.key))
		for i := range parts {
			parts[i] = r.key[i].write()
		}
		w.field(in, "key", "["+strings.Join(parts, ", ")+"]")
	}
	w.field(in, "algorithm", r.quota.algorithm)
	w.field(in, "limits", "["+r.quota.write()+"]")
	w.list(in, "overrides", len(r.overrides), func(i int) string { return r.overrides[i].write() })
	w.field(in, "cost", r.cost)
	if r.countDenied {
		w.field(in, "count_denied", "true")
	}
	switch {
	case r.off:
		w.field(in, "mode", `"off"`)
	case r.quota.shadow:
		w.field(in, "mode", "shadow")
	case r.quota.percent > 0:
		w.field(in, "enforce_percent", strconv.FormatUint(r.quota.percent, 10))
	}
	w.field(in, "response", r.response)
}

func (m *match) write() string {
	var fields []string
	add := func(name string, list []string) {
		if len(list) > 0 {
			fields = append(fields, name+": "+flowList(list))
		}
	}
	add("hosts", m.hosts)
	add("methods", m.methods)
	add("paths", m.paths)
	if len(m.headers) > 0 {
		var headers []string
		for _, h := range m.headers {
			headers = append(headers, scalar(h.name)+": "+scalar(h.value))
		}
		fields = append(fields, "headers: {"+strings.Join(headers, ", ")+"}")
	}
	add("client_ips", m.clientIPs)
	return "{" + strings.Join(fields, ", ") + "}"
}
