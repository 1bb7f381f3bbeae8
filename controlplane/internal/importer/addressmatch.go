package importer

import "net/netip"

// readRemoteAddressMatch reads an action that sends a fixed entry for clients
// of some networks, or for all but them.
func readRemoteAddressMatch(a *object) []descriptor {
	d := fixedOrMade(a, "remote_address_match")
	matcher := a.child("address_matcher")
	var m match
	for _, r := range matcher.children("ranges") {
		if network, ok := readCIDRRange(r); ok {
			m.clientIPs = append(m.clientIPs, network)
		}
	}
	switch inverted := matcher.boolean("invert_match", false); {
	case m.empty():
		d.unknown = append(d.unknown, "Its address_matcher has no ranges.")
	case inverted:
		d.exempt = []match{m}
	default:
		d.match = m
	}
	return []descriptor{d}
}

// readCIDRRange reads a CidrRange, whose bits behind the prefix do not count.
func readCIDRRange(o *object) (network string, ok bool) {
	address, err := netip.ParseAddr(o.text("address_prefix"))
	if err != nil {
		o.fail("address_prefix", "must be an address, such as 10.0.0.0")
		return "", false
	}
	prefix, err := address.WithZone("").Prefix(int(o.integer("prefix_len", 0)))
	if err != nil {
		o.fail("prefix_len", "must be at most the bits of the address, 32 or 128")
		return "", false
	}
	return prefix.String(), true
}
