package request

import (
	"net/netip"
	"strconv"
	"strings"
)

// This file has what a policy compares otherwise than as texts: the names of hosts, and networks.

// within is Pattern.Within for two patterns of a match, which compares hosts and addresses by what they name.
func (id partID) within(p, q Pattern) bool {
	switch id.kind {
	case KindHost:
		return isHostWithin(p.text, q.text)
	case KindClientIP:
		return IsNetworkWithin(p.text, q.text)
	default:
		return p.Within(q)
	}
}

// apart is Pattern.Apart for two patterns of a match. Of two names or networks one is within the other, or they are
// apart.
func (id partID) apart(p, q Pattern) bool {
	switch id.kind {
	case KindHost, KindClientIP:
		return !id.within(p, q) && !id.within(q, p)
	default:
		return p.Apart(q)
	}
}

// HostPattern is the pattern for a name such as a.example, *.a.example or [::1]. It is not ok if a match has no such
// name.
func HostPattern(name string) (p Pattern, ok bool) {
	p = Exact(name)
	host, isWildcard := strings.CutPrefix(name, "*.")
	if isWildcard {
		p = Wildcard(name)
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		ip, err := netip.ParseAddr(name[1 : len(name)-1])
		return p, err == nil && ip.Is6()
	}
	return p, HasOnly(strings.ToLower(host), "abcdefghijklmnopqrstuvwxyz0123456789-_.") && host[0] != '.'
}

// ToHosts are the requests to the hosts of some names. If a match cannot have one of them, WhyOff says so.
func ToHosts(names []string) (s Selection) {
	var list []Pattern
	for _, name := range names {
		p, ok := HostPattern(name)
		if !ok {
			s.TurnOff(NoMatch("a policy has hosts such as a.example and *.a.example, not " + name))
		}
		list = append(list, p)
	}
	if !s.IsOff() {
		s.Require(Host.Value(), list...)
	}
	return s
}

// translateHost is Value.translate for a host.
func translateHost(p Pattern) (inPolicy Pattern, said Remarks) {
	switch {
	case p.kind == WithWildcards && strings.Contains(p.text, ":"):
		said.TurnOff(NoMatch("the host is " + p.text))
	case p.kind == Exactly:
		inPolicy = Exact(WithoutPort(p.text))
		if inPolicy != p {
			said.Comment("The host " + p.text + " is compared without its port here.")
		}
		return inPolicy, said
	}
	return p, said
}

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
	end, isWildcard := strings.CutPrefix(wider, "*")
	if !isWildcard || strings.EqualFold(name, wider) {
		return false
	}
	return strings.HasSuffix(strings.ToLower(strings.TrimPrefix(name, "*")), strings.ToLower(end))
}

// isHostWithin reports whether the hosts of a name are of another one, which may be wider.
func isHostWithin(name, wide string) bool {
	return strings.EqualFold(name, wide) || IsHostBelow(name, wide)
}

// NetworkPattern is the pattern for a network such as 10.0.0.0/8, or for one address. It is not ok if the text is none.
func NetworkPattern(text string) (p Pattern, ok bool) {
	network, ok := NetworkOf(text)
	if network.IsSingleIP() {
		return Exact(network.Addr().String()), ok
	}
	return Exact(network.String()), ok
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

// IsNetworkWithin reports whether the addresses of a network are in another one, which may be wider.
func IsNetworkWithin(network, wide string) bool {
	narrow, isNarrow := NetworkOf(network)
	wider, isWider := NetworkOf(wide)
	return isNarrow && isWider && wider.Bits() <= narrow.Bits() && wider.Overlaps(narrow)
}

// translateAddress is Value.translate for the client's address.
func translateAddress(p Pattern) (inPolicy Pattern, said Remarks) {
	if p.kind != Exactly {
		return p, said
	}
	network, ok := NetworkPattern(p.text)
	if !ok {
		said.TurnOff(ClientIP.noCondition())
	}
	return network, said
}

// isNoAddress reports whether no client's address has the text. A limiter has the address in lower case and short, so
// 2001:DB8::1 is none, nor is 10.1.2.3/16: what it masks is 10.1.0.0/16.
func (v Value) isNoAddress(text string) bool {
	address, _, hasLength := strings.Cut(text, "/")
	ip, _ := netip.ParseAddr(address)
	// A limiter writes ::1.2.3.4 so, and String does not.
	isNotShort := ip.String() != address && !strings.Contains(address, ".")
	network, ok := NetworkOf(text)
	bits := v.Part.V6
	if network.Addr().Is4() {
		bits = v.Part.V4
	}
	switch {
	case !ok, isNotShort, hasLength && ip != network.Addr():
		return true
	case v.as == asNetwork:
		return false
	}
	return network.Bits() != bits || hasLength != (v.as == withLength)
}
