package lint

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// unreachable warns of what a rule says in vain. Only what no request could
// disprove counts.
func (l *linter) unreachable(v value, r *policy.Rule) {
	match := v.field("match")
	paths := match.field("paths")
	for i, p := range r.Match.Paths {
		// "*" is the path of OPTIONS.
		if p.Kind == policy.Regexp && !p.Automaton.Begins('/') && !p.Automaton.Begins('*') {
			l.warn(paths.item(i), `never matches: every path starts with "/"`)
		}
	}
	for _, h := range r.Match.Headers {
		if why := neverInHeader(h.Value); why != "" {
			l.warn(headerAt(match.field("headers"), h.Name), "never matches: "+why)
		}
		if strings.HasSuffix(h.Name, "_match") { // exact_match and its like in Envoy
			l.warn(headerAt(match.field("headers"), h.Name), "is taken as a header's name, as is each name in headers: "+
				"write one such as headers: {x-tier: gold}")
		}
	}
	for _, part := range r.Key {
		if part.Kind == policy.KeyHeader && r.MissingKey == policy.MissingSkip && lacks(&r.Match, part.Name) {
			l.warn(headerAt(match.field("headers"), part.Name), "the rule applies to no request: its key is this header, "+
				"which those that match lack; remove one of the two, or set missing_key to share")
		}
	}
	if len(r.Overrides) > 0 {
		return
	}
	l.tooDear(v, r)
}

// tooDear warns of requests that never fit a limit.
func (l *linter) tooDear(v value, r *policy.Rule) {
	least := leastCost(r.Cost)
	for i := range r.Costs {
		least = min(least, leastCost(r.Costs[i].Cost))
	}
	for i, w := range r.Limits {
		room := w.Max()
		if room == 0 {
			continue
		}
		each := func(cost uint32) string {
			return ": each costs at least " + strconv.FormatUint(uint64(cost), 10) + ", and " + strconv.FormatUint(uint64(room), 10) + " is the most that fits"
		}
		if least > room {
			l.warn(v.field("limits").item(i), "denies every request"+each(least))
			continue
		}
		for j := range r.Costs {
			if cost := leastCost(r.Costs[j].Cost); cost > room {
				l.warn(v.field("cost").item(j), v.field("limits").item(i).path+" denies all that match"+each(cost))
			}
		}
	}
}

func leastCost(c policy.Cost) uint32 { return max(c.Fixed, c.Min) }

func lacks(m *policy.Match, header string) bool {
	for _, h := range m.Headers {
		if h.Name == header && h.Value.Kind == policy.Absent {
			return true
		}
	}
	return false
}

// headerAt is the place of a header's pattern, in whatever case it is written.
func headerAt(headers value, name string) value {
	for _, f := range headers.node.Fields {
		if strings.EqualFold(f.Name, name) {
			return headers.field(f.Name)
		}
	}
	return headers
}

// spellings warns of exact paths that a client can spell so that what they are of,
// the rule or a cost, does not match and its upstream may: no proxy makes those
// spellings one.
func (l *linter) spellings(paths value, patterns []policy.Pattern, of string) {
	for i, p := range patterns {
		if p.Kind != policy.Exact || strings.HasSuffix(p.Text, "/") || !strings.HasPrefix(p.Text, "/") {
			continue
		}
		matches := l.anyMatches(patterns, p.Text+"/")
		if l.compared > maxCompared || len(l.warnings) == policy.MaxProblems {
			return
		}
		if !matches {
			l.warn(paths.item(i), "many an upstream takes "+quote(p.Text+"/")+" for this path, and the "+of+
				" does not: add "+quote(p.Text+"/*")+" where yours does")
		}
	}
}

func (l *linter) anyMatches(patterns []policy.Pattern, path string) bool {
	for i := range patterns {
		l.compared++
		p := &patterns[i]
		if p.Kind == policy.Prefix && strings.HasPrefix(path, p.Text) || p.Kind == policy.Regexp && p.Automaton.Match(path) {
			return true
		}
	}
	return false
}

func (l *linter) override(v value, rule *policy.Node, parts []policy.KeyPart, o *policy.Override) {
	key, limits := v.field("key"), v.field("limits")
	for i, p := range o.Key {
		isText := p.Kind == policy.Exact || p.Kind == policy.Prefix || p.Kind == policy.Suffix
		if isText && i < len(parts) && !l.broken[key.path] {
			at := key.item(i)
			p.Text = written(p.Kind, at.node.Text)
			l.matchable(at, "", p, &parts[i])
		}
	}
	for i := range limits.node.Items {
		if at := limits.item(i); !l.broken[at.path] {
			w := policy.ReadLimit(at.node, rule)
			l.limit(at, &w)
		}
	}
}

// written is the text of a pattern as it stands in the document, without the
// notation's own signs.
func written(kind policy.PatternKind, text string) string {
	switch kind {
	case policy.Prefix:
		return strings.TrimSuffix(text, "*")
	case policy.Suffix:
		return strings.TrimPrefix(text, "*")
	default:
		return strings.TrimPrefix(text, "=")
	}
}

// matchable warns of an exact text, prefix or suffix in an override that no key
// has. The label is what stands before the part in keys.
func (l *linter) matchable(v value, label string, p policy.Pattern, part *policy.KeyPart) {
	why := ""
	switch part.Kind {
	case policy.KeyHeader:
		why = neverInHeader(p)
	case policy.KeyFirstOf:
		l.matchableFirstOf(v, p, part)
	case policy.KeyClientIP:
		if p.Kind == policy.Exact {
			why = neverAddress(label, p.Text, part)
		} else if !fitsAddress(p, "0123456789.", part.V4Prefix, 32) && !fitsAddress(p, "0123456789abcdef:", part.V6Prefix, 128) {
			why = "addresses are in keys as " + keyAddress("192.0.2.7", part.V4Prefix) + " and " +
				keyAddress("2001:db8::7", part.V6Prefix) + " are"
		}
	case policy.KeyHost:
		if p.Kind != policy.Prefix && hasPort(p.Text) {
			why = "hosts are in keys without their port"
		}
	case policy.KeyPath:
		why = neverInPath(p, part.Segment)
	default: // may be anything
	}
	if why != "" {
		l.warn(v, "never matches: "+why)
	}
}

// matchableFirstOf is matchable for the parts of a first_of, whose texts say
// which part they are.
func (l *linter) matchableFirstOf(v value, p policy.Pattern, part *policy.KeyPart) {
	if p.Kind == policy.Suffix {
		return
	}
	var labels []string
	for i := range part.Of {
		label := part.Of[i].Label() + "="
		text, found := strings.CutPrefix(p.Text, label)
		switch {
		case found:
			l.matchable(v, label, policy.Pattern{Kind: p.Kind, Text: text}, &part.Of[i])
			return
		case p.Kind == policy.Prefix && strings.HasPrefix(label, p.Text):
			return
		}
		labels = append(labels, quote(label))
	}
	l.warn(v, "never matches: the key says which part of first_of it has, and begins with "+strings.Join(labels, " or "))
}

// neverAddress says why no key has an address written so.
func neverAddress(label, text string, part *policy.KeyPart) string {
	ip, err := netip.ParseAddr(text)
	if network, bad := netip.ParsePrefix(text); bad == nil {
		ip, err = network.Addr(), nil
	}
	if err != nil {
		return quote(text) + " is no address"
	}
	ip = ip.Unmap().WithZone("")
	bits := part.V6Prefix
	if ip.Is4() {
		bits = part.V4Prefix
	}
	if want := inKey(ip, bits); want != text {
		return "the address is in keys as " + quote(label+want)
	}
	return ""
}

// inKey is how keys cut to so many bits have an address.
func inKey(ip netip.Addr, bits int) string {
	if network, err := ip.Prefix(bits); err == nil && bits < ip.BitLen() {
		return network.String()
	}
	return ip.String()
}

func keyAddress(text string, bits int) string { return quote(inKey(netip.MustParseAddr(text), bits)) }

// neverInHeader says why no header's value is as the pattern.
func neverInHeader(p policy.Pattern) string {
	const blanks = " \t"
	begins, ends := p.Text != strings.TrimLeft(p.Text, blanks), p.Text != strings.TrimRight(p.Text, blanks)
	if p.Kind == policy.Exact && (begins || ends) || p.Kind == policy.Prefix && begins || p.Kind == policy.Suffix && ends {
		return "blanks around a header's value are no part of it"
	}
	return ""
}

// neverInPath says why no path, or segment of one, is as the pattern.
func neverInPath(p policy.Pattern, segment int) string {
	switch {
	case strings.Contains(p.Text, "?"):
		return "paths are in keys without the query"
	case segment > 0 && strings.Contains(p.Text, "/"):
		return `a segment of a path holds no "/"`
	case segment == 0 && p.Kind != policy.Suffix && !strings.HasPrefix(p.Text, "/") && p.Text != "*":
		return `every path starts with "/"`
	}
	return ""
}

// fitsAddress reports whether an address of these characters, cut to so many
// bits, may begin or end so.
func fitsAddress(p policy.Pattern, characters string, bits, all int) bool {
	tail := "" // an address of fewer than all bits ends with them
	if bits < all {
		tail = "/" + strconv.Itoa(bits)
	}
	address, after := p.Text, ""
	if at := strings.IndexByte(p.Text, '/'); at >= 0 {
		address, after = p.Text[:at], p.Text[at:]
	} else if p.Kind == policy.Suffix && tail != "" { // digits of the tail, or of nothing
		return strings.HasSuffix(tail, p.Text)
	}
	if strings.Trim(address, characters) != "" {
		return false
	}
	if p.Kind == policy.Prefix {
		return strings.HasPrefix(tail, after)
	}
	return after == tail
}

func hasPort(host string) bool {
	name, port, found := strings.Cut(host, ":")
	return found && port != "" && strings.Trim(port, "0123456789") == "" && !strings.HasPrefix(name, "[")
}

// covered warns of overrides that an earlier one always stands before.
func (l *linter) covered(v value, overrides []policy.Override) {
	for i := range overrides {
		for j := range i {
			if l.compared > maxCompared {
				return
			}
			if l.covers(overrides[j].Key, overrides[i].Key) {
				l.warn(v.item(i), "can never match: "+v.item(j).path+" comes first and matches every key that it does")
				break
			}
		}
	}
}

func (l *linter) covers(wide, narrow []policy.Pattern) bool {
	for i := range wide {
		l.compared++
		if !covers(wide[i], narrow[i]) {
			return false
		}
	}
	return len(wide) == len(narrow)
}

// covers reports whether p surely matches whatever q does. Of a regular
// expression only the same is known to.
func covers(p, q policy.Pattern) bool {
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
