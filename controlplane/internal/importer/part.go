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

// MarshalYAML writes the part as an item of a rule's key.
func (p part) MarshalYAML() (any, error) {
	switch p.kind {
	case "client_ip":
		return map[string]map[string]int{p.kind: {"v4_prefix": p.v4, "v6_prefix": p.v6}}, nil
	case "path":
		return map[string]string{p.kind: "full"}, nil
	case "property":
		return map[string][]string{p.kind: p.path}, nil
	case "header", "query":
		return map[string]string{p.kind: p.name}, nil
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

// restrict adds to a match that the part fits a pattern. It reports whether the
// match can say that.
func (p part) restrict(m *match, v pattern) (done bool) {
	if v.kind == anyValue {
		return true
	}
	if p.kind == "header" {
		return m.and(match{Headers: map[string]string{p.name: v.value()}})
	}
	text, ok := p.listed(v)
	list := m.list(p.kind)
	if !ok || len(*list) > 0 {
		return false
	}
	*list = []string{text}
	return true
}

// listed writes a pattern over the part as lists of a match have it. It is not ok where
// none has.
func (p part) listed(v pattern) (text string, ok bool) {
	if p.kind == "path" {
		return p.pathOf(v)
	}
	text = p.spell(v).text
	switch p.kind {
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

// match is a rule's match, or one exemption.
type match struct {
	Hosts     []string          `yaml:"hosts,omitempty"`
	Methods   []string          `yaml:"methods,omitempty"`
	Paths     []string          `yaml:"paths,omitempty"`
	Headers   map[string]string `yaml:"headers,omitempty"`
	ClientIPs []string          `yaml:"client_ips,omitempty"`
}

// MarshalYAML writes the match on a line.
func (m match) MarshalYAML() (any, error) {
	type plain match
	return flow(plain(m)), nil
}

// IsZero has a match without conditions left out.
func (m match) IsZero() bool { return m.empty() }

func (m *match) has(header string) bool { return m.Headers[header] != "" }

func (m *match) empty() bool {
	return len(m.Hosts)+len(m.Methods)+len(m.Paths)+len(m.Headers)+len(m.ClientIPs) == 0
}

func (m *match) clone() match {
	return match{slices.Clone(m.Hosts), slices.Clone(m.Methods), slices.Clone(m.Paths), maps.Clone(m.Headers), slices.Clone(m.ClientIPs)}
}

// listed are the parts with a list in a match, which holds if one of its entries does.
var listed = []string{"host", "method", "path", "client_ip"}

// list is the list of such a part.
func (m *match) list(part string) *[]string {
	return map[string]*[]string{"host": &m.Hosts, "method": &m.Methods, "path": &m.Paths, "client_ip": &m.ClientIPs}[part]
}

// without is the match without the conditions that another one has too.
func (m *match) without(other *match) match {
	left := m.clone()
	for _, part := range listed {
		if list := left.list(part); slices.Equal(*list, *other.list(part)) {
			*list = nil
		}
	}
	maps.DeleteFunc(left.Headers, func(name, value string) bool { return other.Headers[name] == value })
	return left
}

// and adds the conditions of another match. It reports whether it did: a match
// has one list for each part, so both may not restrict the same one.
func (m *match) and(other match) (done bool) {
	for _, part := range listed {
		switch list, more := m.list(part), *other.list(part); {
		case len(*list) == 0:
			*list = slices.Clone(more)
		case len(more) == 0 || slices.Equal(*list, more):
		case part == "path" && len(*list) == 1 && len(more) == 1 && pathWithin(more[0], (*list)[0]):
			*list = slices.Clone(more)
		case part != "path" || len(*list) > 1 || len(more) > 1 || !pathWithin((*list)[0], more[0]):
			return false
		}
	}
	for name, value := range other.Headers {
		if m.has(name) && m.Headers[name] != value {
			return false
		}
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[name] = value
	}
	return true
}
