package console

import (
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// So many wrong tokens are looked at, and at once: of one address, and of all together.
const (
	guessesOfOne, guessesOfOneAtOnce = 1, 10 // a second
	guessesOfAll, guessesOfAllAtOnce = 20, 200
	// maxGuessers bounds the addresses that are told apart.
	maxGuessers = 1000
)

// guesses bounds how often visitors show wrong tokens. A right one costs nothing, but
// waits while its address may not guess.
type guesses struct {
	now func() time.Time

	mu  sync.Mutex // held while a token is looked at: guesses at the same time count too
	all *rate.Limiter
	of  map[netip.Prefix]*rate.Limiter
}

func newGuesses(now func() time.Time) *guesses {
	return &guesses{now: now, all: rate.NewLimiter(guessesOfAll, guessesOfAllAtOnce), of: map[netip.Prefix]*rate.Limiter{}}
}

// try looks at a token of somebody at the address, unless too many were wrong.
func (g *guesses) try(address string, look func() (wrong bool, err error)) (wrong bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, from := g.now(), guesser(address)
	own := g.of[from]
	if g.all.TokensAt(now) < 1 || own != nil && own.TokensAt(now) < 1 {
		return false, &failure{code: http.StatusTooManyRequests, text: "too many wrong tokens: try again in 1 s", retryAfter: strconv.Itoa(1 / guessesOfOne)}
	}
	if wrong, err = look(); err != nil || !wrong {
		return wrong, err
	}
	if own == nil {
		g.makeRoom(now)
		own = rate.NewLimiter(guessesOfOne, guessesOfOneAtOnce)
		g.of[from] = own
	}
	g.all.AllowN(now, 1)
	own.AllowN(now, 1)
	return true, nil
}

// makeRoom forgets who may guess as often as somebody new, or else anybody: what all
// may guess together is bounded too.
func (g *guesses) makeRoom(now time.Time) {
	if len(g.of) < maxGuessers {
		return
	}
	for from, own := range g.of {
		if own.TokensAt(now) >= guessesOfOneAtOnce {
			delete(g.of, from)
		}
	}
	for from := range g.of {
		if len(g.of) < maxGuessers {
			return
		}
		delete(g.of, from)
	}
}

// guesser is whom an address stands for: of IPv6, a household has a /64.
func guesser(address string) netip.Prefix {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{} // shared
	}
	ip, bits := at.Addr().Unmap(), 64
	if ip.Is4() {
		bits = 32
	}
	from, _ := ip.WithZone("").Prefix(bits) // it is as long
	return from
}
