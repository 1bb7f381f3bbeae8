package policy

import (
	"net/netip"
	"strings"
)

// CanonicalHost is the one spelling under which a host without port is
// compared and counted: in lower case, without the dot that ends a full name,
// an IPv6 address in brackets in its shortest form.
func CanonicalHost(host string) string {
	if strings.HasPrefix(host, "[") {
		if inside, closed := strings.CutSuffix(host[1:], "]"); closed {
			if ip, err := netip.ParseAddr(inside); err == nil && ip.Is6() {
				return bracketed(host, ip.WithZone(""))
			}
		}
	}
	if len(host) > 1 {
		host = strings.TrimSuffix(host, ".")
	}
	return strings.ToLower(host)
}

// bracketed is the address as a host, the given one where that is it.
func bracketed(host string, ip netip.Addr) string {
	var buf [64]byte
	b := append(ip.AppendTo(append(buf[:0], '[')), ']')
	if string(b) == host {
		return host
	}
	return string(b)
}

func isIPv6(s string) bool {
	ip, err := netip.ParseAddr(s)
	return err == nil && ip.Is6()
}
