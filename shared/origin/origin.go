// Package origin says where a client comes from, and how many wrong tokens came from there.
//
// Its invariant: a client with billions of addresses, as each has in IPv6, is one, and what
// others send refuses nobody. It builds for wasm, and must never read a clock.
package origin

import (
	"net/netip"
)

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

const (
	// MaxGuesses is how many wrong tokens from one origin are looked at in a second.
	MaxGuesses = 10
	// maxGuessers is how many origins are remembered.
	maxGuessers = 256
	second      = int64(1e9)
)

// Guesses counts wrong tokens by where they came from. A new origin takes the place of the
// one that was remembered first: where more send wrong tokens than are remembered, tokens of
// all are looked at. The zero value has counted none.
type Guesses struct {
	of   []guesser
	next int // the place that a new origin takes
}

type guesser struct {
	from  string
	since int64 // when the second began
	n     int
}

// Refuses reports whether no token from there is looked at now.
func (g *Guesses) Refuses(from string, now int64) bool {
	at := g.find(from)
	return at != nil && at.n >= MaxGuesses && at.runs(now)
}

// Add counts a wrong token.
func (g *Guesses) Add(from string, now int64) {
	at := g.find(from)
	if at != nil && at.runs(now) {
		at.n++
		return
	}
	if at == nil {
		if len(g.of) < maxGuessers {
			g.of = append(g.of, guesser{})
		}
		at = &g.of[g.next]
		g.next = (g.next + 1) % maxGuessers
	}
	*at = guesser{from: from, since: now, n: 1}
}

func (g *Guesses) find(from string) *guesser {
	for i := range g.of {
		if g.of[i].from == from {
			return &g.of[i]
		}
	}
	return nil
}

// runs reports whether the second is not over. It is where the clock was set back.
func (g *guesser) runs(now int64) bool { return now >= g.since && now-g.since < second }
