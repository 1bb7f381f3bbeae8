package rules

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// A credential is what follows its scheme: however the scheme and the spaces are
// written, it is one key.
func TestCredentialFollowsItsScheme(t *testing.T) {
	for text, want := range map[string]string{
		"Bearer k1":    "k1",
		"bearer k1":    "k1",
		"BEARER  k1":   "k1",
		"Bearer \t k1": "k1",
		"Bearer k1 k2": "k1",
		"Bearer k1,k2": "k1,k2",
		"Bearer K1":    "K1",
		"Bearer":       "", "Bearer ": "", "Bearerk1": "", "Basic k1": "", "": "", "n1 Bearer k1": "", " Bearer k1": "",
	} {
		got, present := credential(text, "bearer")
		require.Equal(t, want, got, text)
		require.Equal(t, want != "", present, text)
	}
}

// An address in a header is one key in each way that proxies write it.
func TestAddressHasOneSpelling(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7":           "192.0.2.7",
		"192.0.2.7:4711":      "192.0.2.7",
		"::ffff:192.0.2.7":    "192.0.2.7",
		"192.0.2.7, 10.0.0.1": "192.0.2.7",
		`"192.0.2.7:80"`:      "192.0.2.7",
		"2001:db8::7":         "2001:db8::7",
		"2001:DB8:0::7":       "2001:db8::7",
		"[2001:db8::7]":       "2001:db8::7",
		"[2001:db8::7]:443":   "2001:db8::7",
		`"[2001:db8::7]:443"`: "2001:db8::7",
		"fe80::1%eth0":        "fe80::1",
		"2001:db8::7 ,x":      "2001:db8::7",
		"[2001:db8::7":        "2001:db8::7",
		"":                    "",
		"unknown":             "",
		"_hidden":             "",
		"192.0.2":             "",
		"192.0.2.7.1":         "",
		"192.0.2.07":          "",
		",192.0.2.7":          "",
		"[]":                  "",
		":":                   "",
		"localhost:80":        "",
	} {
		ip, present := address(text)
		require.Equal(t, want != "", present, text)
		if present {
			require.Equal(t, want, ip.String(), text)
		}
	}
}

// What a body costs by what the headers say of its length, and whether they end the request.
func TestCostOfABody(t *testing.T) {
	p := hosttest.Policy(t, `{"name":"r","limits":["9999/1h"],"cost":[
		{"match":{"methods":["PUT"]},"cost":{"request_bytes":{"per_unit":4,"min":2,"max":50}}},
		{"cost":{"request_bytes":{"per_unit":2,"min":5,"max":80}}}]}`)
	for _, step := range []struct {
		method     string
		lengths    []string
		bodyless   bool
		units      uint32
		unreadable bool
	}{
		{"GET", nil, true, 5, false},
		{"DELETE", nil, true, 5, false},
		{"PUT", nil, true, 2, false},
		{"POST", nil, false, 80, false}, // in chunks
		{"PUT", nil, false, 50, false},
		{"POST", []string{"0"}, true, 5, false},
		{"POST", []string{"41"}, false, 21, false},
		{"POST", []string{"4000"}, false, 80, false},
		{"POST", []string{"41", "41"}, false, 21, false},
		{"POST", []string{"41", "42"}, false, 80, true},
		{"GET", []string{"+41"}, true, 80, true},
	} {
		source := hosttest.New()
		source.With(":method", step.method)
		source.Headers["content-length"], source.Bodyless = step.lengths, step.bodyless
		if step.lengths == nil {
			delete(source.Headers, "content-length")
		}
		r := NewRequest(source)
		costs := CompileCosts(&r.Request, &p.Rules[0])
		r.Begin()
		units, unreadable := costs.Read(&r)
		require.Equal(t, step.units, units, "%+v", step)
		require.Equal(t, step.unreadable, unreadable, "%+v", step)
	}
}

// A list of networks holds what any of them does.
func TestAddressesContainTheirNetworks(t *testing.T) {
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
