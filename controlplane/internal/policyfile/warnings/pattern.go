package warnings

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const everyPath = `every path starts with "/"`

// warnMatch warns of a rule that no request reaches, or that another spelling escapes.
// Only what no request could disprove counts.
func (c *collector) warnMatch(v policy.Place, r *policy.Rule, manage *policy.Manage) {
	paths, headers := v.Field("paths"), v.Field("headers")
	managed := manage != nil && len(r.Match.Paths) > 0
	for i, p := range r.Match.Paths {
		// "*" is the path of OPTIONS.
		if p.Kind == policy.Regexp && !p.Automaton.Begins('/') && !p.Automaton.Begins('*') {
			c.warnNever(paths.Item(i), everyPath)
		}
		managed = managed && (p.Kind == policy.Exact || p.Kind == policy.Prefix) && strings.HasPrefix(p.Text, manage.Path)
	}
	if managed {
		c.warn(paths, "the rule applies to no request: those under "+quote(manage.Path)+
			" are management requests, which no rule sees")
	}
	for i, h := range r.Match.Headers {
		at := policy.Place{Node: headers.Fields[i].Value}
		isKey := func(p policy.KeyPart) bool { return p.Kind == policy.KeyHeader && p.Name == h.Name }
		if h.Value.Kind == policy.Absent && r.MissingKey != policy.MissingShare && slices.ContainsFunc(r.Key, isKey) {
			does := "applies to no request"
			if r.MissingKey == policy.MissingDeny {
				does = "denies all that match"
			}
			c.warn(at, "the rule "+does+": its key is this header, and it matches only requests without it; "+
				"remove one of the two, or set missing_key to share")
		}
	}
	if len(r.Limits) > 0 {
		c.warnSpellings(paths, r.Match.Paths, "rule")
	}
}

// warnExempted warns of a rule that applies to no request, because all are exempt: by one entry, or by
// two that ask for a header and for its absence.
func (c *collector) warnExempted(v policy.Place, r *policy.Rule) {
	const message = "the rule applies to no request: "
	for i := range c.exempt {
		if c.coversMatch(&c.exempt[i], &r.Match) {
			c.warnOf(v.Field("match"), c.exemptAt.Item(i), message+otherPlace+" exempts all that match; "+
				"remove the rule, or narrow the entry")
			return
		}
	}
	for i := range r.Exempt {
		at := v.Field("exempt").Item(i)
		if c.coversMatch(&r.Exempt[i], &r.Match) {
			c.warn(at, message+"this exempts all that match; remove the entry, or narrow it")
			return
		}
		complement := func(m policy.Match) bool { return areComplements(&m, &r.Exempt[i]) }
		if other := slices.IndexFunc(r.Exempt[:i], complement); other >= 0 {
			c.warnOf(at, v.Field("exempt").Item(other), message+"this exempts all that "+otherPlace+" does not; "+
				"remove one of the two")
			return
		}
	}
}

// areComplements reports whether each request meets one of the two.
func areComplements(a, b *policy.Match) bool {
	alone := func(m *policy.Match) bool {
		others := *m
		others.Headers = nil
		return len(m.Headers) == 1 && others.IsEmpty()
	}
	if !alone(a) || !alone(b) || a.Headers[0].Name != b.Headers[0].Name {
		return false
	}
	kinds := [...]policy.PatternKind{a.Headers[0].Value.Kind, b.Headers[0].Value.Kind}
	return slices.Contains(kinds[:], policy.Present) && slices.Contains(kinds[:], policy.Absent)
}

// coversMatch reports whether wide surely holds for what narrow does, apart from what servers
// read differently.
func (c *collector) coversMatch(wide, narrow *policy.Match) bool {
	sameText := func(w, n string) bool { return w == n }
	sameHost := func(w, n string) bool {
		suffix, below := strings.CutPrefix(w, "*")
		return w == n || below && strings.HasSuffix(n, suffix)
	}
	within := func(w, n netip.Prefix) bool { return w.Bits() <= n.Bits() && w.Contains(n.Addr()) }
	for _, w := range wide.Headers {
		c.compared += len(narrow.Headers)
		isWider := func(n policy.HeaderMatch) bool {
			isPresent := w.Value.Kind == policy.Present && n.Value.Kind != policy.Absent
			return w.Name == n.Name && (isPresent || coversPattern(w.Value, n.Value))
		}
		if c.compared > maxCompared || !slices.ContainsFunc(narrow.Headers, isWider) {
			return false
		}
	}
	return coversAll(c, wide.Methods, narrow.Methods, sameText) && coversAll(c, wide.Hosts, narrow.Hosts, sameHost) &&
		coversAll(c, wide.Paths, narrow.Paths, coversPattern) && coversAll(c, wide.ClientIPs, narrow.ClientIPs, within)
}

// coversAll reports whether wide asks for nothing, or has each of what narrow asks for.
func coversAll[E any](c *collector, wide, narrow []E, covers func(w, n E) bool) bool {
	if len(wide) == 0 {
		return true
	}
	for _, n := range narrow {
		c.compared += len(wide)
		if c.compared > maxCompared || !slices.ContainsFunc(wide, func(w E) bool { return covers(w, n) }) {
			return false
		}
	}
	return len(narrow) > 0
}

// warnNever warns of a pattern that nothing matches, if there is a reason.
func (c *collector) warnNever(v policy.Place, why string) {
	if why != "" {
		c.warn(v, "never matches: "+why)
	}
}

// maxCompared is how many patterns are compared with others: those of some forty
// rules with policy.MaxOverrides each.
const maxCompared = 20 << 20

// warnSpellings warns of exact paths that a client can spell in another way: the rule or the cost no
// longer matches, and the upstream may still answer. No proxy makes those spellings one.
func (c *collector) warnSpellings(paths policy.Place, patterns []policy.Pattern, of string) {
	for i, p := range patterns {
		isPath := strings.HasPrefix(p.Text, "/") && !strings.HasSuffix(p.Text, "/")
		if p.Kind != policy.Exact || !isPath || p.Text == c.usage { // no upstream gets requests for usage
			continue
		}
		matches := c.anyMatches(patterns, p.Text+"/")
		if c.compared > maxCompared || c.isFull() {
			return
		}
		if !matches {
			c.warn(paths.Item(i), "many upstreams treat "+quote(p.Text+"/")+" as this path, and the "+of+
				" does not: add "+quote(p.Text+"/*")+" if yours does")
		}
	}
}

func (c *collector) anyMatches(patterns []policy.Pattern, path string) bool {
	for i := range patterns {
		c.compared++
		if holds, _ := patterns[i].Holds(path, true, true); holds {
			return true
		}
	}
	return false
}

func (c *collector) warnOverride(v policy.Place, o *policy.Override, key []policy.KeyPart) {
	for i, p := range o.Key {
		at := v.Field("key").Item(i)
		isText := p.Kind == policy.Exact || p.Kind == policy.Prefix || p.Kind == policy.Suffix
		if isText && !strings.Contains(at.Text, "%") { // an escape may be of what ends a path
			c.warnNever(at, neverInKey(p, &key[i]))
		}
	}
	for i := range o.Limits {
		c.warnInexact(v, o.Limits[i])
	}
}

// neverInKey says why no key's part is as the exact text, prefix or suffix.
func neverInKey(p policy.Pattern, part *policy.KeyPart) string {
	switch part.Kind {
	case policy.KeyFirstOf:
		return neverInFirstOf(p, part)
	case policy.KeyClientIP, policy.KeyAddress:
		return neverAddress(p, part)
	case policy.KeyHost:
		name, port, _ := strings.Cut(p.Text, ":")
		isPort := port != "" && strings.Trim(port, "0123456789") == "" && !strings.HasPrefix(name, "[")
		if isPort && p.Kind != policy.Prefix {
			return "a host in a key has no port"
		}
	case policy.KeyPath:
		switch {
		case part.Segment == 0 && p.Kind != policy.Suffix && !strings.HasPrefix(p.Text, "/") && p.Text != "*":
			return everyPath
		case strings.Contains(p.Text, "?"):
			return "a path in a key has no query"
		case part.Segment > 0 && strings.Contains(p.Text, "/"):
			return `a segment of a path has no "/"`
		}
	default: // may be anything
	}
	return ""
}

// neverInFirstOf is neverInKey for the parts of a first_of, whose texts say which
// part they are.
func neverInFirstOf(p policy.Pattern, part *policy.KeyPart) string {
	var labels []string
	for i := range part.Of {
		label := part.Of[i].Label() + "="
		if text, found := strings.CutPrefix(p.Text, label); found {
			return neverInKey(policy.Pattern{Kind: p.Kind, Text: text}, &part.Of[i])
		}
		if mayBe(label, p) {
			return ""
		}
		labels = append(labels, quote(label))
	}
	return "the key says which part of first_of it has, and begins with " + strings.Join(labels, " or ")
}

// neverAddress says why no key has an address written so.
func neverAddress(p policy.Pattern, part *policy.KeyPart) string {
	if p.Kind != policy.Exact {
		if strings.Trim(p.Text, "0123456789abcdef.:/") != "" {
			return "an address in a key is in lower case, such as 192.0.2.7 or 2001:db8::7"
		}
		return ""
	}
	network, err := netip.ParsePrefix(p.Text)
	ip := network.Addr()
	if err != nil {
		ip, err = netip.ParseAddr(p.Text)
	}
	if err != nil {
		return quote(p.Text) + " is not an address"
	}
	want := part.Network(ip.Unmap().WithZone(""))
	if want == p.Text {
		return ""
	}
	return "a key has this address as " + quote(want)
}

// warnCovered warns of overrides that an earlier one always stands before.
func (c *collector) warnCovered(v policy.Place, overrides []policy.Override) {
	for i := range overrides {
		for j := range i {
			if c.compared > maxCompared {
				return
			}
			if c.coversKey(overrides[j].Key, overrides[i].Key) {
				c.warnOf(v.Item(i), v.Item(j), "never matches: "+otherPlace+" comes first and matches every key that this does")
				break
			}
		}
	}
}

// coversKey reports whether an override for the wide patterns surely has all keys of the narrow ones.
func (c *collector) coversKey(wide, narrow []policy.Pattern) bool {
	for i := range wide {
		c.compared++
		if !coversPattern(wide[i], narrow[i]) {
			return false
		}
	}
	return true
}

// coversPattern reports whether p surely matches whatever q does. A regular expression surely covers
// only itself.
func coversPattern(p, q policy.Pattern) bool {
	switch p.Kind {
	case policy.Any:
		return true
	case policy.Prefix:
		return (q.Kind == policy.Exact || q.Kind == policy.Prefix) && strings.HasPrefix(q.Text, p.Text)
	case policy.Suffix:
		return (q.Kind == policy.Exact || q.Kind == policy.Suffix) && strings.HasSuffix(q.Text, p.Text)
	default:
		return p == q
	}
}
