package host

import (
	"strings"

	"github.com/dchest/siphash"
)

const (
	// maxMistakes is how many wrong tokens an address may bring in a second.
	maxMistakes = 10
	second      = int64(1e9)
)

// mistakes counts wrong tokens by the address that they came from, so that
// nobody can lock out an operator elsewhere, and in a fixed number of places, so
// that many addresses take no more memory and get at most places × maxMistakes
// guesses a second.
type mistakes struct {
	seed   uint64
	places [64]mistake
}

type mistake struct {
	since int64 // when the second began
	n     int
}

// of returns the place of an address; the port does not count.
func (m *mistakes) of(address string) *mistake {
	if colon := strings.LastIndexByte(address, ':'); colon >= 0 {
		address = address[:colon]
	}
	return &m.places[siphash.Hash(m.seed, 0, []byte(address))%uint64(len(m.places))]
}

// tooMany reports whether no token is looked at now. The count starts anew every
// second, also when the clock was set back.
func (m *mistake) tooMany(now int64) bool {
	if now-m.since >= second || now < m.since {
		*m = mistake{since: now}
	}
	return m.n >= maxMistakes
}
