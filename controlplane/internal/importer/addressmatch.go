package importer

import (
	"net/netip"
	"strings"
)

// readRemoteAddressMatch reads an action that sends a fixed entry for clients
// of some networks, or for all but them.
func readRemoteAddressMatch(a *object) []descriptor {
	e := entry{key: a.text("descriptor_key"), value: a.text("descriptor_value")}
	if e.key == "" {
		e.key = "remote_address_match"
	}
	a.ignore("default_value")
	d := descriptor{entries: []entry{e}}
	if strings.Contains(e.value, "%") {
		d.unknown = append(d.unknown, "The value "+e.value+" is made of the request by Envoy's formatter, which was not translated.")
	}
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
