package host

import (
	"net/netip"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
)

const (
	// maxMistakes is how many wrong tokens of one address are looked at in a second.
	maxMistakes = 10
	// maxMistaken is how many addresses are remembered.
	maxMistaken = 256
	second      = int64(1e9)
)

// mistakes counts wrong tokens by the address that sent them. Each count is of one
// address alone, so that nobody is refused for what others sent. A new address takes
// the place of the one that was remembered first: where more send wrong tokens than
// are remembered, tokens of all are looked at.
type mistakes struct {
	of   []mistake
	next int // the place that a new address takes
}

type mistake struct {
	from  netip.Addr
	since int64 // when the second began
	n     int
}

// origin is what counts as one address: of IPv6 a network of 64 bits, because one
// client has all of its addresses. Clients without an address are one.
func origin(address string) netip.Addr {
	ip := request.AddressOf(address)
	if ip.Is6() {
		network, _ := ip.Prefix(64) // it is as long
		ip = network.Addr()
	}
	return ip
}

// refuses reports whether no token from there is looked at now.
func (m *mistakes) refuses(from netip.Addr, now int64) bool {
	at := m.find(from)
	return at != nil && at.n >= maxMistakes && at.runs(now)
}

// add counts a wrong token.
func (m *mistakes) add(from netip.Addr, now int64) {
	at := m.find(from)
	if at != nil && at.runs(now) {
		at.n++
		return
	}
	if at == nil {
		if len(m.of) < maxMistaken {
			m.of = append(m.of, mistake{})
		}
		at = &m.of[m.next]
		m.next = (m.next + 1) % maxMistaken
	}
	*at = mistake{from: from, since: now, n: 1}
}

func (m *mistakes) find(from netip.Addr) *mistake {
	for i := range m.of {
		if m.of[i].from == from {
			return &m.of[i]
		}
	}
	return nil
}

// runs reports whether the second is not over. It is where the clock was set back.
func (m *mistake) runs(now int64) bool { return now >= m.since && now-m.since < second }
