package policy

import (
	"errors"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
)

// parseRegexp compiles an expression.
func parseRegexp(re string, set *automaton.Set) (Pattern, error) {
	p := Pattern{Kind: Regexp, Text: re}
	if re == "" {
		return p, errors.New(`a regular expression must follow the "~"`)
	}
	var err error
	if p.Automaton, err = set.Compile(re); err == nil {
		return p, nil
	}
	e := (*syntax.Error)(nil)
	if !errors.As(err, &e) {
		return p, errors.New("the regular expression " + quote(re) + " " + err.Error())
	}
	message := "invalid regular expression " + quote(re) + ": " + e.Code.String()
	if at := strings.Index(re, e.Expr); at >= 0 && e.Expr != "" {
		message += " at character " + itoa(int64(utf8.RuneCountInString(re[:at])+1)) + ": " + quote(e.Expr)
	}
	return p, errors.New(message + ` (the syntax is RE2)`)
}

// parsePath reads the notation of match.paths.
func parsePath(s string, set *automaton.Set) (Pattern, error) {
	if re, found := strings.CutPrefix(s, "~"); found {
		return parseRegexp(re, set)
	}
	p := Pattern{Kind: Exact, Text: s}
	if text, found := strings.CutPrefix(s, "="); found {
		p.Text = text
	} else {
		if text, found := strings.CutSuffix(s, "*"); found {
			p = Pattern{Kind: Prefix, Text: text}
		}
		if strings.Contains(p.Text, "*") {
			return p, errors.New(`a * stands only at the end of a path: write a regular expression after "~", or "=" before a path to take it literally`)
		}
	}
	switch {
	case strings.Contains(p.Text, "?"):
		return p, errors.New("paths are compared without the query: leave out what follows the ?")
	case strings.HasPrefix(p.Text, "/"), p.Kind == Prefix && p.Text == "", p.Kind == Exact && s == "=*":
		p.Text = Unescape(p.Text)
		return p, nil
	}
	if strings.HasPrefix(s, "^") || strings.HasSuffix(s, "$") {
		return p, errors.New(`a regular expression goes after "~": write ` + quote("~"+s))
	}
	return p, errors.New(`a path starts with "/": write ` + quote("/"+p.Text))
}

// parseHeaderValue reads the notation of match.headers.
func parseHeaderValue(s string, set *automaton.Set) (Pattern, error) {
	switch {
	case s == "*":
		return Pattern{Kind: Present}, nil
	case s == "!":
		return Pattern{Kind: Absent}, nil
	case strings.HasPrefix(s, "="):
		return Pattern{Kind: Exact, Text: s[1:]}, nil
	case strings.HasPrefix(s, "~"):
		return parseRegexp(s[1:], set)
	case strings.HasPrefix(s, "!"):
		return Pattern{}, errors.New(`"!" stands alone and means absent: write "=" before a value to take it literally`)
	}
	p := Pattern{Kind: Exact, Text: s}
	if text, found := strings.CutSuffix(s, "*"); found {
		p = Pattern{Kind: Prefix, Text: text}
	} else if text, found := strings.CutPrefix(s, "*"); found {
		p = Pattern{Kind: Suffix, Text: text}
	}
	if strings.Contains(p.Text, "*") {
		return p, errors.New(`a * stands only at one end of a value: write a regular expression after "~", or "=" before a value to take it literally`)
	}
	return p, nil
}

// parseHost reads the notation of match.hosts; the result is lower case.
func parseHost(s string) (string, error) {
	host := CanonicalHost(s)
	name := strings.TrimPrefix(host, "*.")
	if strings.HasPrefix(name, "[") {
		if inside, found := strings.CutSuffix(name[1:], "]"); found && name == host && isIPv6(inside) {
			return host, nil
		}
		if !strings.Contains(name, "]:") {
			return "", errors.New("invalid host " + quote(s) + `: write an IPv6 address such as "[2001:db8::1]"`)
		}
	}
	if isIPv6(host) {
		return "", errors.New("an IPv6 address is in brackets here: write " + quote("["+host+"]"))
	}
	if _, rest, found := strings.Cut(host, "://"); found {
		rest, _, _ = strings.Cut(rest, "/")
		return "", errors.New("a host stands alone, without scheme and path: write " + quote(withoutPort(rest)))
	}
	if at := strings.LastIndexByte(name, ':'); at >= 0 {
		return "", errors.New("hosts are compared without their port: write " + quote(host[:len(host)-len(name)+at]))
	}
	if name == "*" {
		return "", errors.New("leave hosts out to match every host")
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case isDigit(c), isLetter(c), c == '-', c == '_', c == '.':
		case c == '*':
			return "", errors.New(`a * stands only for the first labels of a host, as in "*.example.com"`)
		case c >= 0x80:
			return "", errors.New("hosts are ASCII: write the name in punycode (xn--…)")
		default:
			return "", errors.New("invalid host " + quote(s) + `: write one such as "api.example.com" or "*.example.com"`)
		}
	}
	if name == "" || name[0] == '.' {
		return "", errors.New("invalid host " + quote(s) + `: write one such as "api.example.com" or "*.example.com"`)
	}
	return host, nil
}

func withoutPort(host string) string {
	if at := strings.LastIndexByte(host, ':'); at > strings.LastIndexByte(host, ']') {
		return host[:at]
	}
	return host
}

// isToken reports whether s is a token of RFC 9110, which header names and
// methods are.
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !isDigit(c) && !isLetter(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
