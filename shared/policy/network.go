package policy

import "net/netip"

func readClientIPs(r *reader, v value, m *Match) {
	eachText(r, v, func(at value, s string) {
		network, fault := parseNetwork(s)
		if fault != "" {
			r.fail(at, fault)
			return
		}
		m.ClientIPs = append(m.ClientIPs, network)
	})
}

const networkHint = `: write one such as "192.0.2.7", "10.0.0.0/8" or "2001:db8::/32"`

// parseNetwork reads an address or a network, or says what is wrong with it.
// IPv4 addresses mapped into IPv6 become IPv4 ones, as those of clients do.
func parseNetwork(s string) (network netip.Prefix, fault string) {
	if ip, err := netip.ParseAddr(s); err == nil {
		if ip.Zone() != "" {
			return network, "must be an address without zone: write " + quote(ip.WithZone("").String())
		}
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), ""
	}
	network, err := netip.ParsePrefix(s)
	if err != nil {
		if end, err := netip.ParseAddrPort(s); err == nil {
			return network, "must be without port: write " + quote(end.Addr().String())
		}
		return network, "must be an address or a network, not " + quote(s) + networkHint
	}
	if network.Addr().Is4In6() {
		const mapped = 96
		if network.Bits() < mapped {
			return network, "is wider than the IPv4 addresses in IPv6 that it names: write an IPv4 network such as \"10.0.0.0/8\""
		}
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-mapped)
	}
	if masked := network.Masked(); masked != network {
		return network, "has bits set beyond its prefix: write " + quote(masked.String()) + ", or " + quote(network.Addr().String()) + " for the one address"
	}
	return network, ""
}
