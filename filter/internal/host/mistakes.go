package host

import (
	"strings"

	"github.com/dchest/siphash"
)

const (
	// maxMistakes is how many wrong tokens an address may send in a second.
	maxMistakes = 10
	second      = int64(1e9)
)

// mistakes counts wrong tokens by client address, so that a client cannot lock out
// an operator elsewhere. The number of places is fixed, so that many addresses take
// no more memory and get at most places × maxMistakes guesses a second.
type mistakes struct {
	seed   uint64
	places [64]mistake
}

type mistake struct {
	since int64 // when the second began
	n     int
}

// of returns the place of an address without its port.
func (m *mistakes) of(address string) *mistake {
	if colon := strings.LastIndexByte(address, ':'); colon >= 0 {
		address = address[:colon]
	}
	return &m.places[siphash.Hash(m.seed, 0, []byte(address))%uint64(len(m.places))]
}

// refuses reports whether no token is looked at now. It starts a new count every
// second, and when the clock was set back.
func (m *mistake) refuses(now int64) bool {
	if now-m.since >= second || now < m.since {
		*m = mistake{since: now}
	}
	return m.n >= maxMistakes
}
