package policy

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
)

// Regexp compiles a Pattern of kind Regexp for matching in full. Everyone who
// matches uses it: an expression that compiles alone need not inside (?:…).
func (p Pattern) Regexp() (*regexp.Regexp, error) {
	re, err := regexp.Compile("^(?:" + p.Text + ")$")
	if err == nil {
		return re, nil
	}
	// The expression alone gives the error in the words of its writer.
	if _, alone := syntax.Parse(p.Text, syntax.Perl); alone != nil {
		err = alone
	}
	message := "invalid regular expression " + quote(p.Text)
	if e := (*syntax.Error)(nil); errors.As(err, &e) {
		message += ": " + e.Code.String()
		if at := strings.Index(p.Text, e.Expr); at >= 0 && e.Expr != "" {
			message += " at character " + itoa(int64(len([]rune(p.Text[:at]))+1)) + ": " + quote(e.Expr)
		}
	}
	return nil, errors.New(message + ` (the syntax is RE2)`)
}

// parsePath reads the notation of match.paths.
func parsePath(s string) (Pattern, error) {
	if re, found := strings.CutPrefix(s, "~"); found {
		return parseRegexp(re)
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
func parseHeaderValue(s string) (Pattern, error) {
	switch {
	case s == "*":
		return Pattern{Kind: Present}, nil
	case s == "!":
		return Pattern{Kind: Absent}, nil
	case strings.HasPrefix(s, "="):
		return Pattern{Kind: Exact, Text: s[1:]}, nil
	case strings.HasPrefix(s, "~"):
		return parseRegexp(s[1:])
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

func parseRegexp(re string) (Pattern, error) {
	p := Pattern{Kind: Regexp, Text: re}
	if re == "" {
		return p, errors.New(`a regular expression must follow the "~"`)
	}
	_, err := p.Regexp()
	return p, err
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
