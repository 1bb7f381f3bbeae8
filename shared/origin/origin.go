// Package origin says where a client comes from, and counts wrong tokens by that.
//
// Its invariant: all addresses of an IPv6 network of 64 bits are one client, and a client is
// only refused for tokens of its own. It builds for wasm, and must never read a clock.
package origin

import "net/netip"

// Address reads an address with or without port. It returns the zero address for a text
// that is none, and an IPv4 address for one that is mapped into IPv6.
func Address(text string) netip.Addr {
	end, err := netip.ParseAddrPort(text)
	ip := end.Addr()
	if err != nil {
		ip, err = netip.ParseAddr(text)
	}
	if err != nil {
		return netip.Addr{} // a pipe: it has no address
	}
	return ip.Unmap().WithZone("")
}

// Of is what counts as one client: an IPv4 address, or an IPv6 network of 64 bits. It is ""
// if there is no address.
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

// Guesses counts wrong tokens by where they came from. It remembers a fixed number of
// origins, and a new one takes the place of the oldest. So if very many origins send wrong
// tokens, tokens of all are looked at. The zero value has counted none.
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

// runs reports whether the second still runs. It is over if the clock was set back.
func (g *guesser) runs(now int64) bool { return now >= g.since && now-g.since < second }
