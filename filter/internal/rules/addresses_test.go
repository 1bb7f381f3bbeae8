package rules

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A list of networks holds what any of them does.
func TestAddresses(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var networks []netip.Prefix
		for range dice.IntN(12) {
			ip := netip.AddrFrom4([4]byte{byte(dice.IntN(3)), byte(dice.IntN(3) *
				127), byte(dice.IntN(256)), byte(dice.IntN(256))})
			if dice.IntN(3) == 0 {
				ip = netip.AddrFrom16([16]byte{0: byte(dice.IntN(2)), 14: byte(dice.IntN(256)), 15: byte(dice.IntN(256))})
			}
			networks = append(networks, netip.PrefixFrom(ip, dice.IntN(ip.BitLen()+1)).Masked())
		}
		a := newAddresses(networks)
		for range 60 {
			ip := netip.AddrFrom4([4]byte{byte(dice.IntN(3)), byte(dice.IntN(256)), byte(dice.IntN(256)), byte(dice.IntN(256))})
			if dice.IntN(3) == 0 {
				ip = netip.AddrFrom16([16]byte{0: byte(dice.IntN(2)), 14: byte(dice.IntN(256)), 15: byte(dice.IntN(256))})
			} else if len(networks) > 0 && dice.IntN(2) == 0 {
				ip = lastOf(networks[dice.IntN(len(networks))])
				if dice.IntN(2) == 0 && ip.Next().IsValid() {
					ip = ip.Next()
				}
			}
			want := slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(ip) })
			require.Equal(t, want, a.contains(ip), "%s in %s", ip, networks)
		}
	}
}
