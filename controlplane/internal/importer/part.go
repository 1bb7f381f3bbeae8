package importer

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// part is a part of a request, for a rule's key or match.
type part struct {
	kind   partKind
	name   string // of a header or query parameter
	v4, v6 int    // of client_ip
	path   []string
	query  bool // of a path: Envoy compares it with its query
	masked bool // of client_ip: its values may be networks of any size
}

// partKind is what a part is, as the policy names it.
type partKind string

const (
	kindHeader   partKind = "header"
	kindQuery    partKind = "query"
	kindCookie   partKind = "cookie"
	kindClientIP partKind = "client_ip"
	kindPath     partKind = "path"
	kindMethod   partKind = "method"
	kindHost     partKind = "host"
	kindProperty partKind = "property"
)

var (
	clientIP = part{kind: kindClientIP, v4: 32, v6: 128}
	maskedIP = part{kind: kindClientIP, v4: 32, v6: 128, masked: true}
	fullPath = part{kind: kindPath}
	method   = part{kind: kindMethod}
	host     = part{kind: kindHost}
)

// headerPart is the part for a header or for one of Envoy's pseudo headers.
func headerPart(name string) part {
	name = strings.ToLower(name)
	switch name {
	case ":path":
		return part{kind: kindPath, query: true}
	case ":method":
		return method
	case ":authority", "host":
		return host
	}
	return part{kind: kindHeader, name: name}
}

// readHeaderPart is the part for a header that a file names. It adds a problem if no header has that name.
func (r *reader) readHeaderPart(name string, at place) (p part, ok bool) {
	p = headerPart(name)
	ok = p.kind != kindHeader || isHeaderName(p.name)
	if !ok {
		r.fail(at, strconv.Quote(name)+" is not the name of a header")
	}
	return p, ok
}

// isHeaderName reports whether a header may have this name, in lower case.
func isHeaderName(name string) bool { return len(name) <= policy.MaxNameBytes && policy.IsToken(name) }

// partID tells parts apart in a match, which has a list of patterns for each. It is the same for client
// addresses of all prefix lengths, and for a path with and without its query.
type partID struct {
	kind partKind
	name string // of a header
}

// id is what a match has the patterns of the part by.
func (p part) id() partID { return partID{p.kind, p.name} }

// is reports whether two parts are the same part of a request.
func (p part) is(q part) bool {
	return p.kind == q.kind && p.name == q.name && p.v4 == q.v4 && p.v6 == q.v6 && slices.Equal(p.path, q.path)
}

// String names the part in messages.
func (p part) String() string { return strings.TrimSpace(string(p.kind) + " " + p.name) }

// MarshalYAML writes the part as an item of a rule's key.
func (p part) MarshalYAML() (any, error) {
	switch p.kind {
	case kindClientIP:
		return map[partKind]any{p.kind: map[string]int{"v4_prefix": p.v4, "v6_prefix": p.v6}}, nil
	case kindPath:
		return map[partKind]any{p.kind: "full"}, nil
	case kindProperty:
		return map[partKind]any{p.kind: p.path}, nil
	case kindHeader, kindQuery, kindCookie:
		return map[partKind]any{p.kind: p.name}, nil
	case kindMethod, kindHost:
	}
	return string(p.kind), nil
}

// networkOf is the network of a text, which may be an address.
func networkOf(text string) (network netip.Prefix, ok bool) {
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap().WithZone("")
		return netip.PrefixFrom(ip, ip.BitLen()), true
	}
	network, err := netip.ParsePrefix(text)
	return network.Masked(), err == nil
}

// isNever reports whether no request has a value of the part that fits the pattern.
func (p part) isNever(v pattern) bool {
	switch {
	case p.kind == kindPath:
		return (v.kind == exactly || v.kind == wildcard) && !v.beginsPath() && v.text != "*" // the path of OPTIONS
	case p.kind == kindClientIP && v.kind == exactly:
		network, ok := networkOf(v.text)
		bits := p.v6
		if network.Addr().Is4() {
			bits = p.v4
		}
		return !ok || !p.masked && network.Bits() != bits
	}
	return false
}

// fit returns the pattern that does the same in a policy, where paths come without
// their query, hosts without a port, and addresses in one spelling. It is not ok
// if there is none.
func (p part) fit(v pattern) (fit pattern, ok bool) {
	ok = true
	switch {
	case p.kind == kindPath:
		if p.query {
			v, _, ok = v.ofPath()
		}
		return v, ok && (v.kind == anyValue || v.kind == expression || v.beginsPath() && !strings.Contains(v.text, "?"))
	case v.kind != exactly:
	case p.kind == kindHost:
		v.text = withoutPort(v.text)
	case p.kind == kindClientIP:
		network, isNetwork := networkOf(v.text)
		ok = isNetwork
		switch {
		case network.IsSingleIP():
			v.text = network.Addr().String()
		case ok:
			v.text = network.String()
		}
	}
	return v, ok
}

// asOverride writes a pattern over the part as overrides have it. It is not ok if
// no override can say it.
func (p part) asOverride(v pattern) (text string, ok bool) {
	v, ok = p.fit(v)
	return v.notation(p), ok
}

// restrict is a match in which the part fits a pattern too. It is not ok if no match can
// say that.
func (p part) restrict(m match, v pattern) (restricted match, ok bool) {
	if v.kind == anyValue {
		return m, true
	}
	v, ok = p.fit(v)
	switch p.kind {
	case kindHeader:
		return m.and(p.matching(v))
	case kindPath:
	case kindMethod:
		ok = v.kind == exactly && isOf(v.text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
	case kindHost:
		ok = v.kind == exactly && isHost(v.text)
	default:
		ok = ok && p.kind == kindClientIP && v.kind == exactly
	}
	if !ok || m.of(p) != nil {
		return m, false
	}
	return m.and(p.matching(v))
}

// isHost reports whether text is a name that hosts of a match may have.
func isHost(text string) bool {
	return isOf(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789-_.") && text[0] != '.'
}

// isOf reports whether text has only these characters, and at least one.
func isOf(text, characters string) bool { return text != "" && strings.Trim(text, characters) == "" }

// withoutPort cuts ":8080" from a host.
func withoutPort(text string) string {
	if colon := strings.LastIndexByte(text, ':'); colon >= 0 && !strings.HasSuffix(text, "]") {
		if _, err := strconv.ParseUint(text[colon+1:], 10, 16); err == nil {
			return text[:colon]
		}
	}
	return text
}
