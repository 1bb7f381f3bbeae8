package wording

import (
	"errors"
	"net/netip"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func managePath(s string) string {
	switch {
	case s == "/":
		return `must be more than "/", which is every request: write one such as "/.sluice/"`
	case !strings.HasPrefix(s, "/") || !strings.HasSuffix(s, "/"):
		return `must start and end with "/": write ` + quote("/"+strings.Trim(s, "/")+"/")
	}
	return `must be a plain path without "//", "?", "#", "%", "\" or spaces, such as "/.sluice/"`
}

func badHost(s string) string {
	host := policy.CanonicalHost(s)
	name := strings.TrimPrefix(host, "*.")
	if strings.HasPrefix(name, "[") && !strings.Contains(name, "]:") {
		return "invalid host " + quote(s) + `: write an IPv6 address such as "[2001:db8::1]"`
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		return "an IPv6 address is in brackets here: write " + quote("["+host+"]")
	}
	if _, rest, found := strings.Cut(host, "://"); found {
		rest, _, _ = strings.Cut(rest, "/")
		if at := strings.LastIndexByte(rest, ':'); at > strings.LastIndexByte(rest, ']') {
			rest = rest[:at]
		}
		return "a host stands alone, without scheme and path: write " + quote(rest)
	}
	if at := strings.LastIndexByte(name, ':'); at >= 0 {
		return "hosts are compared without their port: write " + quote(host[:len(host)-len(name)+at])
	}
	if name == "*" {
		return "leave hosts out to match every host"
	}
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '*':
			return `a * stands only for the first labels of a host, as in "*.example.com"`
		case c >= utf8.RuneSelf:
			return "hosts are ASCII: write the name in punycode (xn--…)"
		case !isHostChar(c):
			return invalidHost(s)
		}
	}
	return invalidHost(s)
}

func isHostChar(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '-' || c == '_' || c == '.'
}

func invalidHost(s string) string {
	return "invalid host " + quote(s) + `: write one such as "api.example.com" or "*.example.com"`
}

func badPath(s string) string {
	text, literal := strings.CutPrefix(s, "=")
	if !literal {
		if text = strings.TrimSuffix(s, "*"); strings.Contains(text, "*") {
			return `a * stands only at the end of a path: write a regular expression after "~", or "=" before a path to take it literally`
		}
	}
	switch {
	case strings.Contains(text, "?"):
		return "paths are compared without the query: leave out what follows the ?"
	case strings.HasPrefix(s, "^") || strings.HasSuffix(s, "$"):
		return `a regular expression goes after "~": write ` + quote("~"+s)
	}
	return `a path starts with "/": write ` + quote("/"+text)
}

func badPattern(s string, inOverride bool) string {
	switch {
	case strings.HasPrefix(s, "!") && inOverride:
		return `"!" means nothing here: write "=" before a value to take it literally`
	case strings.HasPrefix(s, "!"):
		return `"!" stands alone and means absent: write "=" before a value to take it literally`
	}
	return `a * stands only at one end of a value: write a regular expression after "~", or "=" before a value to take it literally`
}

func badExpression(expression, reason string) string {
	if expression == "" {
		return `a regular expression must follow the "~"`
	}
	e := (*syntax.Error)(nil)
	if strings.HasPrefix(reason, "error parsing regexp: ") {
		_, err := syntax.Parse(expression, syntax.Perl)
		errors.As(err, &e)
	}
	if e == nil {
		return "the regular expression " + quote(expression) + " " + reason
	}
	message := "invalid regular expression " + quote(expression) + ": " + e.Code.String()
	if at := strings.Index(expression, e.Expr); at >= 0 && e.Expr != "" {
		message += " at character " + strconv.Itoa(utf8.RuneCountInString(expression[:at])+1) + ": " + quote(e.Expr)
	}
	return message + " (the syntax is RE2)"
}

func badNetwork(s string) string {
	if ip, err := netip.ParseAddr(s); err == nil {
		return "must be an address without zone: write " + quote(ip.WithZone("").String())
	}
	network, err := netip.ParsePrefix(s)
	if err != nil {
		if end, err := netip.ParseAddrPort(s); err == nil {
			return "must be without port: write " + quote(end.Addr().String())
		}
		return "must be an address or a network, not " + quote(s) + `: write one such as "192.0.2.7", "10.0.0.0/8" or "2001:db8::/32"`
	}
	if network.Addr().Is4In6() {
		const mapped = 96
		if network.Bits() < mapped {
			return `is wider than the IPv4 addresses in IPv6 that it names: write an IPv4 network such as "10.0.0.0/8"`
		}
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-mapped)
	}
	return "has bits set beyond its prefix: write " + quote(network.Masked().String()) + ", or " + quote(network.Addr().String()) +
		" for the one address"
}

func badHeaderName(s string, inResponse bool) string {
	switch {
	case inResponse && s == ":status":
		return "cannot be set: use status"
	case inResponse:
		return "must be a header's name such as x-reason, not " + quote(s)
	case strings.HasPrefix(s, ":"):
		return "must be a header, not " + quote(s) + ": use host, method or path"
	}
	return "must be a header's name such as x-user-id, not " + quote(s)
}

// takenBy says what to do in place of giving a header of that name.
func takenBy(name string) string {
	switch name {
	case "content-length":
		return "the proxy counts the body"
	case "content-type":
		return "use content_type"
	case "host":
		return "it belongs to requests"
	case "date", "server":
		return "the proxy sets it"
	case "grpc-status":
		return "use grpc_status"
	case "grpc-message":
		return "it is the body"
	case "retry-after":
		return "every denial that a wait would help has it"
	case "x-envoy-ratelimited":
		return "every denial has it"
	case "ratelimit", "ratelimit-policy":
		return "use headers: ietf of the policy"
	case "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset":
		return "use headers: x-ratelimit of the policy"
	}
	return "it is about the connection, which is the proxy's"
}

// badTemplate says what is wrong with a % before this text.
func badTemplate(rest string) string {
	const literal = "; a percent sign is written %%"
	names := "%" + strings.Join(policy.Placeholders, "%, %") + "%"
	name, _, closed := strings.Cut(rest, "%")
	length := 0
	for length < len(name) && name[length] != '-' && name[length] != '.' && isHostChar(name[length]) {
		length++
	}
	word := name[:length]
	upper := strings.ToUpper(word)
	isKnown := strings.Contains(names, "%"+upper+"%")
	switch {
	case (!closed || length < len(name)) && length > 0 && isKnown:
		return "holds a placeholder without its end: write %" + upper + "%" + literal
	case !closed || length < len(name) || length == 0:
		return "holds a % that begins no placeholder: write %% for a percent sign, or one of " + names
	}
	lower := strings.Split(strings.ToLower(strings.Trim(names, "%")), "%, %")
	message := "holds the unknown placeholder %" + policy.Clip(word) + "%: "
	if near := nearest(word, lower); near != "" {
		return message + "did you mean %" + strings.ToUpper(near) + "%?"
	}
	return message + "write one of " + names + literal
}

func propertyExample(first string) string {
	switch first {
	case "request":
		return `["request", "headers", "x-user-id"]`
	case "connection":
		return `["connection", "uri_san_peer_certificate"]`
	case "source", "destination":
		return `["` + first + `", "port"]`
	case "metadata":
		return `["metadata", "filter_metadata", "envoy.lb", "user"]`
	case "xds":
		return `["xds", "route_name"]`
	case "node":
		return `["node", "id"]`
	}
	return `["filter_state", "NAME"]`
}
