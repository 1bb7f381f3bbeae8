package policy

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
)

// pattern makes a Pattern of s, or reports the code if it cannot.
func (r *reader) pattern(v value, s string, parse func(string) (Pattern, bool), code Code) (Pattern, bool) {
	p, ok := parse(s)
	if !ok {
		r.fail(v, code)
		return p, false
	}
	if p.Kind == Regexp {
		p.Automaton, ok = r.expression(v, p.Text)
	}
	return p, ok
}

func (r *reader) expression(v value, text string) (*automaton.Automaton, bool) {
	if text == "" {
		r.fail(v, BadExpression, text, `is empty: write one after the "~"`)
		return nil, false
	}
	a, err := r.expressions.Compile(text)
	if err != nil {
		r.fail(v, BadExpression, text, err.Error())
	}
	return a, err == nil
}

// parsePath reads the notation of match.paths.
func parsePath(s string) (Pattern, bool) {
	if re, found := strings.CutPrefix(s, "~"); found {
		return Pattern{Kind: Regexp, Text: re}, true
	}
	p := Pattern{Kind: Exact, Text: s}
	if text, found := strings.CutPrefix(s, "="); found {
		p.Text = text
	} else {
		if text, found := strings.CutSuffix(s, "*"); found {
			p = Pattern{Kind: Prefix, Text: text}
		}
		if strings.Contains(p.Text, "*") {
			return p, false
		}
	}
	if strings.Contains(p.Text, "?") {
		return p, false
	}
	ok := strings.HasPrefix(p.Text, "/") || s == "*" || s == "=*"
	p.Text = Unescape(p.Text)
	return p, ok
}

// parseHeaderValue reads the notation of match.headers.
func parseHeaderValue(s string) (Pattern, bool) {
	switch {
	case s == "*":
		return Pattern{Kind: Present}, true
	case s == "!":
		return Pattern{Kind: Absent}, true
	case strings.HasPrefix(s, "="):
		return Pattern{Kind: Exact, Text: s[1:]}, true
	case strings.HasPrefix(s, "~"):
		return Pattern{Kind: Regexp, Text: s[1:]}, true
	case strings.HasPrefix(s, "!"):
		return Pattern{}, false
	}
	p := Pattern{Kind: Exact, Text: s}
	if text, found := strings.CutSuffix(s, "*"); found {
		p = Pattern{Kind: Prefix, Text: text}
	} else if text, found := strings.CutPrefix(s, "*"); found {
		p = Pattern{Kind: Suffix, Text: text}
	}
	return p, !strings.Contains(p.Text, "*")
}

// ParsePattern reads a pattern in the notation of match.headers, for what is not part of a policy.
func ParsePattern(s string) (Pattern, error) {
	p, ok := parseHeaderValue(s)
	if !ok {
		return p, errors.New("a * may stand at one end of a value, and a ! alone: " +
			`write a regular expression after "~", or "=" before a value to take it literally`)
	}
	if p.Kind != Regexp {
		return p, nil
	}
	if p.Text == "" {
		return p, errors.New(`is empty: write one after the "~"`)
	}
	var err error
	p.Automaton, err = new(automaton.Set).Compile(p.Text)
	return p, err
}

// parseKeyPattern reads the notation of overrides: that of match.headers with
// "*" for any. "!" is kept for parts that are missing.
func parseKeyPattern(s string) (Pattern, bool) {
	if strings.HasPrefix(s, "!") {
		return Pattern{}, false
	}
	p, ok := parseHeaderValue(s)
	if p.Kind == Present {
		p.Kind = Any
	}
	return p, ok
}

// parseHost reads the notation of match.hosts; the result is lower case.
func parseHost(s string) (string, bool) {
	host := CanonicalHost(s)
	if inside, closed := strings.CutSuffix(strings.TrimPrefix(host, "["), "]"); closed && strings.HasPrefix(host, "[") {
		ip, err := netip.ParseAddr(inside)
		return host, err == nil && ip.Is6()
	}
	name := strings.TrimPrefix(host, "*.")
	for i := 0; i < len(name); i++ {
		if c := name[i]; !isDigit(c) && !isLetter(c) && c != '-' && c != '_' && c != '.' {
			return host, false
		}
	}
	return host, name != "" && name[0] != '.'
}

// parseNetwork reads an address or a network. IPv4 addresses mapped into IPv6
// become IPv4 ones, as those of clients do.
func parseNetwork(s string) (netip.Prefix, bool) {
	if ip, err := netip.ParseAddr(s); err == nil {
		zoned := ip.Zone() != ""
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), !zoned
	}
	network, err := netip.ParsePrefix(s)
	if err != nil {
		return network, false
	}
	if network.Addr().Is4In6() {
		const mapped = 96
		if network.Bits() < mapped {
			return network, false
		}
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-mapped)
	}
	return network, network.Masked() == network
}

// IsToken reports whether s is a token of RFC 9110, which header names and
// methods are.
func IsToken(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !isDigit(c) && !isLetter(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// isPrintable reports whether s is ASCII without control characters.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Placeholders are the names of values in a response, the first of ValueRule.
var Placeholders = []string{"RULE", "RETRY_AFTER", "LIMIT", "REMAINING", "MISSING"}

// parseTemplate reads the notation of response: %NAME% is a value and %% a
// percent sign.
func parseTemplate(s string) (t Template, ok bool) {
	literal := ""
	for {
		before, after, found := strings.Cut(s, "%")
		literal += before
		if !found {
			break
		}
		name, behind, closed := strings.Cut(after, "%")
		if closed && name == "" {
			literal, s = literal+"%", behind
			continue
		}
		at := slices.Index(Placeholders, name)
		if !closed || at < 0 {
			return nil, false
		}
		if literal != "" {
			t, literal = append(t, TemplatePart{Text: literal}), ""
		}
		t, s = append(t, TemplatePart{Value: ValueRule + Placeholder(at)}), behind
	}
	if literal != "" {
		t = append(t, TemplatePart{Text: literal})
	}
	return t, true
}

// Holds reports whether the pattern holds for a value. If the value is too long for an
// expression, it says so and returns doubt.
func (p *Pattern) Holds(value string, present, doubt bool) (holds, tooLong bool) {
	switch {
	case p.Kind == Any:
		return true, false
	case !present || p.Kind == Absent:
		return !present && p.Kind == Absent, false
	}
	switch p.Kind {
	case Present:
		return true, false
	case Exact:
		return value == p.Text, false
	case Prefix:
		return strings.HasPrefix(value, p.Text), false
	case Suffix:
		return strings.HasSuffix(value, p.Text), false
	default: // a regular expression
	}
	if len(value) > automaton.MaxValueBytes {
		return doubt, true
	}
	return p.Automaton.Match(value), false
}

// CanonicalHost is the one spelling under which a host without port is
// compared and counted: in lower case, without dots at its end, an IPv6 address
// in brackets in its shortest form.
func CanonicalHost(host string) string {
	if strings.HasPrefix(host, "[") {
		if inside, closed := strings.CutSuffix(host[1:], "]"); closed {
			if ip, err := netip.ParseAddr(inside); err == nil && ip.Is6() {
				return bracketed(host, ip.WithZone(""))
			}
		}
	}
	for len(host) > 1 && host[len(host)-1] == '.' {
		host = host[:len(host)-1]
	}
	return strings.ToLower(host)
}

// bracketed is the address as a host; it is host itself if that is the same text.
func bracketed(host string, ip netip.Addr) string {
	var buf [64]byte
	b := append(ip.AppendTo(append(buf[:0], '[')), ']')
	if string(b) == host {
		return host
	}
	return string(b)
}

// Unescape resolves escapes such as %20 once. A % that begins no escape stays, as in
// browsers and most servers, so that every text has a meaning.
func Unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	return string(appendUnescaped(make([]byte, 0, len(s)), s, false))
}

// UnescapeQuery is Unescape for names and values in a query: there, + is a space.
func UnescapeQuery(s string) string {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s
	}
	return string(appendUnescaped(make([]byte, 0, len(s)), s, true))
}

func appendUnescaped(b []byte, s string, plus bool) []byte {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '+' && plus:
			c = ' '
		case c == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			c = hexValue(s[i+1])<<4 | hexValue(s[i+2])
			i += 2
		}
		b = append(b, c)
	}
	return b
}

func isHex(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

func hexValue(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}
