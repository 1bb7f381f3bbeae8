package rules

import (
	"net/netip"
	"slices"
	"sort"
)

// addresses is a set of networks as ranges: sorted, and none meets another, so
// that a list of thousands costs a dozen comparisons.
type addresses []addressRange

type addressRange struct{ first, last netip.Addr }

func newAddresses(networks []netip.Prefix) addresses {
	var list addresses
	for _, n := range networks {
		list = append(list, addressRange{n.Addr(), lastOf(n)})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].first.Less(list[j].first) })
	out := list[:0]
	for _, r := range list {
		if n := len(out); n > 0 && r.first.Compare(out[n-1].last) <= 0 {
			if r.last.Compare(out[n-1].last) > 0 {
				out[n-1].last = r.last
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// lastOf is the highest address of a network.
func lastOf(n netip.Prefix) netip.Addr {
	b := n.Addr().AsSlice()
	for bit := n.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	ip, _ := netip.AddrFromSlice(b)
	return ip
}

func (a addresses) contains(ip netip.Addr) bool {
	at, exact := slices.BinarySearchFunc(a, ip, func(r addressRange, ip netip.Addr) int { return r.first.Compare(ip) })
	return exact || at > 0 && ip.Compare(a[at-1].last) <= 0
}
