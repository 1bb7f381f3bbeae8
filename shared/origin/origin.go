// Package origin says where a client comes from, and how many wrong tokens came from there.
//
// Its invariant: a client with billions of addresses, as each has in IPv6, is one, and what
// others send refuses nobody. It builds for wasm, and must never read a clock.
package origin

import "net/netip"

// Address reads an address with or without port; the zero one is none. One mapped into IPv6
// is an IPv4 address.
func Address(text string) netip.Addr {
	end, err := netip.ParseAddrPort(text)
	ip := end.Addr()
	if err != nil {
		if ip, err = netip.ParseAddr(text); err != nil {
			return netip.Addr{} // a pipe: it has no address
		}
	}
	return ip.Unmap().WithZone("")
}

// Of is what counts as one client: an IPv4 address, of IPv6 a network of 64 bits, "" where
// there is no address.
func Of(address string) string {
	ip := Address(address)
	if ip.Is6() {
		network, _ := ip.Prefix(64) // it is as long
		return network.String()
	}
	if !ip.IsValid() {
		return ""
	}
	return ip.String()
}
