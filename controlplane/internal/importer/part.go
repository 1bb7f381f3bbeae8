package importer

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// part is a part of a request, for a rule's key or match.
type part struct {
	kind   string // as the policy names it
	name   string // of a header or query parameter
	v4, v6 int    // of client_ip
	path   []string
	query  bool // of a path: Envoy compares it with its query
	masked bool // of client_ip: its values may be networks of any size
}

var (
	clientIP = part{kind: "client_ip", v4: 32, v6: 128}
	maskedIP = part{kind: "client_ip", v4: 32, v6: 128, masked: true}
	fullPath = part{kind: "path"}
	method   = part{kind: "method"}
	host     = part{kind: "host"}
)

// headerPart is the part for a header or for one of Envoy's pseudo headers.
func headerPart(name string) part {
	switch name = strings.ToLower(name); name {
	case ":path":
		return part{kind: "path", query: true}
	case ":method":
		return method
	case ":authority", "host":
		return host
	}
	return part{kind: "header", name: name}
}

// is reports whether two parts are the same part of a request.
func (p part) is(q part) bool {
	return p.kind == q.kind && p.name == q.name && p.v4 == q.v4 && p.v6 == q.v6 && slices.Equal(p.path, q.path)
}

// String names the part, and its condition in a match.
func (p part) String() string { return strings.TrimSpace(p.kind + " " + p.name) }

// MarshalYAML writes the part as an item of a rule's key.
func (p part) MarshalYAML() (any, error) {
	switch p.kind {
	case "client_ip":
		return map[string]any{p.kind: map[string]int{"v4_prefix": p.v4, "v6_prefix": p.v6}}, nil
	case "path":
		return map[string]any{p.kind: "full"}, nil
	case "property":
		return map[string]any{p.kind: p.path}, nil
	case "header", "query":
		return map[string]any{p.kind: p.name}, nil
	}
	return p.kind, nil
}

// spell writes a value of the part as rules' keys have it.
func (p part) spell(v pattern) pattern {
	if p.kind != "client_ip" || v.kind != exactly {
		return v
	}
	if ip, err := netip.ParseAddr(v.text); err == nil {
		v.text = ip.Unmap().WithZone("").String()
	} else if network, err := netip.ParsePrefix(v.text); err == nil {
		v.text = network.Masked().String()
		if network.IsSingleIP() {
			v.text = network.Addr().String()
		}
	}
	return v
}

// never reports whether no request has such a value of the part.
func (p part) never(v pattern) bool {
	switch {
	case p.kind == "path" && (v.kind == exactly || v.kind == wildcard):
		return v.text == "" || v.text[0] != '/' && v.text[0] != '*'
	case p.kind == "client_ip" && v.kind == exactly:
		text := p.spell(v).text
		if ip, err := netip.ParseAddr(text); err == nil {
			text = netip.PrefixFrom(ip, ip.BitLen()).String()
		}
		network, err := netip.ParsePrefix(text)
		bits := p.v6
		if network.Addr().Is4() {
			bits = p.v4
		}
		return err != nil || !p.masked && network.Bits() != bits
	}
	return false
}

// override writes a pattern over the part as overrides have it. It is not ok if
// the part never fits the pattern.
func (p part) override(v pattern) (text string, ok bool) {
	if p.kind == "path" {
		if _, ok := p.pathOf(v); !ok {
			return "", false
		}
	}
	if p.kind == "host" && v.kind == exactly {
		v.text = withoutPort(v.text)
	}
	return p.spell(v).value(), true
}

// pathOf writes a pattern over the path in the notation of paths.
func (p part) pathOf(v pattern) (text string, ok bool) {
	if p.query {
		if v, _, ok = v.ofPath(); !ok {
			return "", false
		}
	}
	return v.path()
}

// restrict is a match in which the part fits a pattern too. It is not ok if no match can
// say that.
func (p part) restrict(m match, v pattern) (restricted match, ok bool) {
	if v.kind == anyValue {
		return m, true
	}
	text, ok := p.listed(v)
	if !ok || p.kind != "header" && m[p.kind] != nil {
		return m, false
	}
	return m.and(match{p.String(): {text}})
}

// listed writes a pattern over the part as lists of a match have it. It is not ok where
// none has.
func (p part) listed(v pattern) (text string, ok bool) {
	text = p.spell(v).text
	switch p.kind {
	case "path":
		return p.pathOf(v)
	case "header":
		return v.value(), true
	case "method":
		ok = isOf(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
	case "host":
		text = withoutPort(text)
		ok = isHost(text)
	case "client_ip":
		ok = isNetwork(text)
	}
	return text, ok && v.kind == exactly
}

// isNetwork reports whether text is an address or a network.
func isNetwork(text string) bool {
	_, err := netip.ParseAddr(text)
	_, bad := netip.ParsePrefix(text)
	return err == nil || bad == nil
}

// isHost reports whether text is a name that hosts of a match may have.
func isHost(text string) bool {
	return isOf(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789-_.") && text[0] != '.'
}

// isOf reports whether text has only these characters, and at least one.
func isOf(text, characters string) bool { return text != "" && strings.Trim(text, characters) == "" }

// withoutPort cuts ":8080" from a host.
func withoutPort(text string) string {
	if at := strings.LastIndexByte(text, ':'); at >= 0 && !strings.HasSuffix(text, "]") {
		if _, err := strconv.ParseUint(text[at+1:], 10, 16); err == nil {
			return text[:at]
		}
	}
	return text
}

// match is a rule's match, or one exemption: for each part with a condition, by its name,
// the values of which one fits. It is not changed once it is made.
type match map[string][]string

// MarshalYAML writes the match on a line.
func (m match) MarshalYAML() (any, error) {
	headers := map[string]string{}
	for part, values := range m {
		if name, ok := strings.CutPrefix(part, "header "); ok {
			headers[name] = values[0]
		}
	}
	return flow(struct {
		Hosts     []string          `yaml:"hosts,omitempty"`
		Methods   []string          `yaml:"methods,omitempty"`
		Paths     []string          `yaml:"paths,omitempty"`
		Headers   map[string]string `yaml:"headers,omitempty"`
		ClientIPs []string          `yaml:"client_ips,omitempty"`
	}{m["host"], m["method"], m["path"], headers, m["client_ip"]}), nil
}

// without is the match without the conditions that another one has too.
func (m match) without(other match) match {
	left := maps.Clone(m)
	maps.DeleteFunc(left, func(part string, values []string) bool { return slices.Equal(values, other[part]) })
	return left
}

// and has the conditions of both matches. It is not ok, and has those of m alone, for a part
// on which they differ.
func (m match) and(other match) (both match, ok bool) {
	both, ok = match{}, true
	maps.Copy(both, m)
	for part, more := range other {
		switch has := m[part]; {
		case has == nil:
			both[part] = more
		case slices.Equal(has, more):
		case part == "path" && len(has) == 1 && len(more) == 1 && pathWithin(more[0], has[0]):
			both[part] = more
		case part != "path" || len(has) > 1 || len(more) > 1 || !pathWithin(has[0], more[0]):
			ok = false
		}
	}
	return both, ok
}
