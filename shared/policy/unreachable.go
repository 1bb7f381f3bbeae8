package policy

import (
	"net/netip"
	"strings"
)

// unreachable warns of what a sound rule says in vain. Only what no request
// could disprove counts: a rule that is off, or enforced on 0 % of its keys, is
// as its writer wants it.
func (r *reader) unreachable(v value, rule *Rule) {
	if rule.Mode == ModeOff {
		return
	}
	match := fieldAt(v, "match")
	if paths := fieldAt(match, "paths"); has(match, "paths") {
		for i, p := range rule.Match.Paths {
			// "*" is the path of OPTIONS.
			if p.Kind == Regexp && !p.Automaton.Begins('/') && !p.Automaton.Begins('*') {
				r.warn(paths.item(i, shape{}), `never matches: every path starts with "/"`)
			}
		}
	}
	for _, part := range rule.Key {
		if part.Kind == KeyHeader && rule.MissingKey == MissingSkip && rule.Match.lacks(part.Name) {
			r.warn(headerAt(match, part.Name), "the rule applies to no request: its key is this header, which those that match lack; remove one of the two, or set missing_key to share")
		}
	}
	if len(rule.Overrides) > 0 {
		return
	}
	cost := max(rule.Cost.Fixed, rule.Cost.Min)
	for i, l := range rule.Limits {
		if most := l.Max(); most > 0 && cost > most {
			r.warn(fieldAt(v, "limits").item(i, shape{}), "denies every request: each costs at least "+itoa(int64(cost))+", and "+itoa(int64(most))+" is the most that fits")
		}
	}
}

// managed warns of a rule for management requests alone: those are answered
// before any rule is asked.
func (r *reader) managed(p *Policy) {
	if p.Manage == nil {
		return
	}
	for i := range p.Rules {
		rule := &p.Rules[i]
		in := rule.Mode != ModeOff && len(rule.Match.Paths) > 0
		for _, path := range rule.Match.Paths {
			in = in && (path.Kind == Exact || path.Kind == Prefix) && strings.HasPrefix(path.Text, p.Manage.Path)
		}
		if in {
			r.warn(fieldAt(fieldAt(r.rules[i].value, "match"), "paths"),
				"the rule applies to no request: those under "+quote(p.Manage.Path)+" are management requests, which no rule sees")
		}
	}
}

func (m *Match) lacks(header string) bool {
	for _, h := range m.Headers {
		if h.Name == header && h.Value.Kind == Absent {
			return true
		}
	}
	return false
}

// headerAt is the place of a header's pattern, in whatever case it is written.
func headerAt(match value, name string) value {
	at := fieldAt(match, "headers")
	for _, f := range at.node.Fields {
		if strings.EqualFold(f.Name, name) {
			return value{node: f.Value, at: at.at.field(f.Name)}
		}
	}
	return at
}

// matchable warns of an exact text, prefix or suffix in an override that no key
// has.
func (r *reader) matchable(v value, label string, p Pattern, part *KeyPart) {
	why := ""
	switch part.Kind {
	case KeyClientIP:
		if p.Kind == Exact {
			r.address(v, label, p.Text, part)
		} else if !fitsAddress(p, "0123456789.", part.V4Prefix, 32) && !fitsAddress(p, "0123456789abcdef:", part.V6Prefix, 128) {
			why = "addresses are in keys as " + keyAddress("192.0.2.7", part.V4Prefix) + " and " + keyAddress("2001:db8::7", part.V6Prefix) + " are"
		}
	case KeyHost:
		if p.Kind != Prefix && hasPort(p.Text) {
			why = "hosts are in keys without their port"
		}
	case KeyPath:
		why = neverInPath(p, part.Segment)
	default: // may be anything
	}
	if why != "" {
		r.warn(v, "never matches: "+why)
	}
}

// neverInPath says why no path, or segment of one, is as the pattern.
func neverInPath(p Pattern, segment int) string {
	switch {
	case strings.Contains(p.Text, "?"):
		return "paths are in keys without the query"
	case segment > 0 && strings.Contains(p.Text, "/"):
		return `a segment of a path holds no "/"`
	case segment == 0 && p.Kind != Suffix && !strings.HasPrefix(p.Text, "/") && p.Text != "*":
		return `every path starts with "/"`
	}
	return ""
}

// fitsAddress reports whether an address of these characters, cut to so many
// bits, may begin or end so.
func fitsAddress(p Pattern, characters string, bits, all int) bool {
	tail := bitsOf(bits, all)
	at := strings.IndexByte(p.Text, '/')
	address, after := p.Text, ""
	if at >= 0 {
		address, after = p.Text[:at], p.Text[at:]
	} else if p.Kind == Suffix && tail != "" { // digits of the tail, or of nothing
		return strings.HasSuffix(tail, p.Text)
	}
	if strings.Trim(address, characters) != "" {
		return false
	}
	if p.Kind == Prefix {
		return strings.HasPrefix(tail, after)
	}
	return after == tail
}

// bitsOf is how an address of fewer than all bits ends.
func bitsOf(bits, all int) string {
	if bits == all {
		return ""
	}
	return "/" + itoa(int64(bits))
}

// keyAddress is how keys cut to so many bits have an address.
func keyAddress(text string, bits int) string {
	ip := netip.MustParseAddr(text)
	network, err := ip.Prefix(bits)
	if err != nil || bits == ip.BitLen() {
		return quote(text)
	}
	return quote(network.String())
}

func hasPort(host string) bool {
	name, port, found := strings.Cut(host, ":")
	return found && port != "" && strings.Trim(port, "0123456789") == "" && !strings.HasPrefix(name, "[")
}
