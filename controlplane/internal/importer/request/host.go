package request

import (
	"net/netip"
	"strconv"
	"strings"
)

// IsHost reports whether text is a name that hosts of a match may have.
func IsHost(text string) bool {
	return HasOnly(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789-_.") && text[0] != '.'
}

// IsHostOrWildcard reports whether text is such a name, or *. and one, as a.example and *.a.example.
func IsHostOrWildcard(text string) bool { return IsHost(strings.TrimPrefix(text, "*.")) }

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

// NetworkText is a network as policies write it: one of a single address without its length.
func NetworkText(text string) (written string, ok bool) {
	network, ok := NetworkOf(text)
	if network.IsSingleIP() {
		return network.Addr().String(), ok
	}
	return network.String(), ok
}

// isNetworkWithin reports whether the addresses of a network are in another one, which may be wider.
func isNetworkWithin(network, wide string) bool {
	narrow, _ := NetworkOf(network)
	wider, _ := NetworkOf(wide)
	return wider.Bits() <= narrow.Bits() && wider.Overlaps(narrow)
}
