package request

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Part is a part of a request, as a rule's key or match has it.
type Part struct {
	Kind   PartKind
	Name   string   // of a header, query parameter or cookie
	V4, V6 int      // of client_ip: the lengths of prefixes that count together
	Path   []string // of a property
}

// PartKind is what a part is, as the policy names it.
type PartKind string

// The kinds of parts.
const (
	KindHeader   PartKind = "header"
	KindQuery    PartKind = "query"
	KindCookie   PartKind = "cookie"
	KindClientIP PartKind = "client_ip"
	KindPath     PartKind = "path"
	KindMethod   PartKind = "method"
	KindHost     PartKind = "host"
	KindProperty PartKind = "property"
)

// The parts that have no name.
var (
	ClientIP = Part{Kind: KindClientIP, V4: 32, V6: 128}
	FullPath = Part{Kind: KindPath}
	Method   = Part{Kind: KindMethod}
	Host     = Part{Kind: KindHost}

	ConnectionID = Property("connection", "id")
)

// Property is the part for a property of Envoy.
func Property(path ...string) Part { return Part{Kind: KindProperty, Path: path} }

// IsHeaderName reports whether a header may have this name, in lower case.
func IsHeaderName(name string) bool { return len(name) <= policy.MaxNameBytes && policy.IsToken(name) }

// partID tells parts apart in a match, which has a list of patterns for each. It is the same for client
// addresses of all prefix lengths, and for a path with and without its query.
type partID struct {
	kind PartKind
	name string // of a header
}

func (p Part) id() partID { return partID{p.Kind, p.Name} }

func (id partID) part() Part { return Part{Kind: id.kind, Name: id.name} }

// Is reports whether two parts are the same part of a request.
func (p Part) Is(q Part) bool {
	return p.Kind == q.Kind && p.Name == q.Name && p.V4 == q.V4 && p.V6 == q.V6 && slices.Equal(p.Path, q.Path)
}

// String names the part in messages.
func (p Part) String() string { return strings.TrimSpace(string(p.Kind) + " " + p.Name) }

// MarshalYAML writes the part as an item of a rule's key.
func (p Part) MarshalYAML() (any, error) {
	switch p.Kind {
	case KindClientIP:
		return map[PartKind]any{p.Kind: map[string]int{"v4_prefix": p.V4, "v6_prefix": p.V6}}, nil
	case KindPath:
		return map[PartKind]any{p.Kind: "full"}, nil
	case KindProperty:
		return map[PartKind]any{p.Kind: p.Path}, nil
	case KindHeader, KindQuery, KindCookie:
		return map[PartKind]any{p.Kind: p.Name}, nil
	case KindMethod, KindHost:
	}
	return string(p.Kind), nil
}

// MayBeMissing reports whether a request may lack the part.
func (p Part) MayBeMissing() bool {
	return p.Kind == KindHeader || p.Kind == KindQuery || p.Kind == KindCookie
}

// isHost reports whether text is the name of one host in a match.
func isHost(text string) bool {
	return HasOnly(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789-_.") && text[0] != '.'
}

// HasOnly reports whether text has only these characters, and at least one.
func HasOnly(text, characters string) bool { return text != "" && strings.Trim(text, characters) == "" }

// WithoutPort cuts ":8080" from a host.
func WithoutPort(text string) string {
	if colon := strings.LastIndexByte(text, ':'); colon >= 0 && !strings.HasSuffix(text, "]") {
		if _, err := strconv.ParseUint(text[colon+1:], 10, 16); err == nil {
			return text[:colon]
		}
	}
	return text
}

// IsHostBelow reports whether every host of a name is one of another, wider name, as those of a.b.example and
// *.b.example are hosts of *.example. Hosts have no case.
func IsHostBelow(name, wider string) bool {
	name = strings.ToLower(name)
	wider = strings.ToLower(wider)
	end, isWildcard := strings.CutPrefix(wider, "*")
	return isWildcard && name != wider && strings.HasSuffix(strings.TrimPrefix(name, "*"), end)
}

// isHostWithin reports whether the hosts of a name are of another one, which may be wider.
func isHostWithin(name, wide string) bool {
	return strings.EqualFold(name, wide) || IsHostBelow(name, wide)
}

// NetworkOf is the network of a text, which may be an address.
func NetworkOf(text string) (network netip.Prefix, ok bool) {
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap().WithZone("")
		return netip.PrefixFrom(ip, ip.BitLen()), true
	}
	network, err := netip.ParsePrefix(text)
	return network.Masked(), err == nil
}

// isNetworkWithin reports whether the addresses of a network are in another one, which may be wider.
func isNetworkWithin(network, wide string) bool {
	narrow, isNarrow := NetworkOf(network)
	wider, isWider := NetworkOf(wide)
	return isNarrow && isWider && wider.Bits() <= narrow.Bits() && wider.Overlaps(narrow)
}
