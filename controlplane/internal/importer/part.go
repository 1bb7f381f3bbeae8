package importer

import (
	"fmt"
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

// write writes the part as an item of a rule's key.
func (p part) write() string {
	switch p.kind {
	case "client_ip":
		return fmt.Sprintf("{client_ip: {v4_prefix: %d, v6_prefix: %d}}", p.v4, p.v6)
	case "path":
		return "{path: full}"
	case "property":
		quoted := make([]string, len(p.path))
		for i := range quoted {
			quoted[i] = scalar(p.path[i])
		}
		return "{property: [" + strings.Join(quoted, ", ") + "]}"
	case "header", "query":
		return "{" + p.kind + ": " + scalar(p.name) + "}"
	}
	return p.kind
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
	switch p.kind {
	case "header":
		if m.header(p.name) {
			return false
		}
		m.headers = append(m.headers, headerMatch{p.name, v.value()})
	case "path":
		text, ok := p.pathOf(v)
		if !ok || len(m.paths) > 0 {
			return false
		}
		m.paths = []string{text}
	case "method":
		if v.kind != exactly || len(m.methods) > 0 || !isOf(v.text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") {
			return false
		}
		m.methods = []string{v.text}
	case "host":
		if v.kind != exactly || len(m.hosts) > 0 || !isHost(withoutPort(v.text)) {
			return false
		}
		m.hosts = []string{withoutPort(v.text)}
	case "client_ip":
		if v.kind != exactly || len(m.clientIPs) > 0 {
			return false
		}
		text := p.spell(v).text
		if !isNetwork(text) {
			return false
		}
		m.clientIPs = []string{text}
	default:
		return false
	}
	return true
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
	hosts, methods, paths []string
	headers               []headerMatch
	clientIPs             []string
}

type headerMatch struct{ name, value string }

func (m *match) header(name string) bool {
	return slices.ContainsFunc(m.headers, func(h headerMatch) bool { return h.name == name })
}

func (m *match) empty() bool {
	return len(m.hosts)+len(m.methods)+len(m.paths)+len(m.headers)+len(m.clientIPs) == 0
}

func (m *match) clone() match {
	return match{slices.Clone(m.hosts), slices.Clone(m.methods), slices.Clone(m.paths), slices.Clone(m.headers),
		slices.Clone(m.clientIPs)}
}

// lists are the lists of a match that holds if one of a list's entries does.
func (m *match) lists() [4]*[]string {
	return [4]*[]string{&m.hosts, &m.methods, &m.paths, &m.clientIPs}
}

// without is the match without the conditions that another one has too.
func (m *match) without(other *match) match {
	left := m.clone()
	for i, list := range left.lists() {
		if slices.Equal(*list, *other.lists()[i]) {
			*list = nil
		}
	}
	left.headers = slices.DeleteFunc(left.headers, func(h headerMatch) bool { return slices.Contains(other.headers, h) })
	return left
}

// and adds the conditions of another match. It reports whether it did: a match
// has one list for each part, so both may not restrict the same one.
func (m *match) and(other match) (done bool) {
	for i, list := range m.lists() {
		switch more := *other.lists()[i]; {
		case len(*list) == 0:
			*list = slices.Clone(more)
		case len(more) == 0 || slices.Equal(*list, more):
		case list == &m.paths && len(*list) == 1 && len(more) == 1 && pathWithin(more[0], (*list)[0]):
			*list = slices.Clone(more)
		case list != &m.paths || len(*list) > 1 || len(more) > 1 || !pathWithin((*list)[0], more[0]):
			return false
		}
	}
	for _, h := range other.headers {
		if m.header(h.name) {
			if slices.Contains(m.headers, h) {
				continue
			}
			return false
		}
		m.headers = append(m.headers, h)
	}
	return true
}
