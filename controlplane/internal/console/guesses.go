package console

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/conns"
)

const (
	// So many wrong tokens of one address are looked at, and at once.
	guessesASecond, guessesAtOnce = 1, 10
	// maxGuessers bounds the addresses that are remembered.
	maxGuessers = 1000
)

// guesses bounds how often an address shows wrong tokens. A right one costs nothing,
// but waits while its address may not guess. An address that is not remembered may: it
// must not matter to one how many others guess.
type guesses struct {
	now func() time.Time

	mu sync.Mutex // held while a token is looked at: guesses at the same time count too
	of map[string]*rate.Limiter
}

func newGuesses(now func() time.Time) *guesses {
	return &guesses{now: now, of: map[string]*rate.Limiter{}}
}

// try looks at a token of somebody at the address, unless too many were wrong.
func (g *guesses) try(address string, look func() (wrong bool, err error)) (wrong bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, from := g.now(), conns.Origin(address)
	own := g.of[from]
	if own != nil && own.TokensAt(now) < 1 {
		return false, &failure{code: http.StatusTooManyRequests, Text: "too many wrong tokens: try again in 1 s", retryAfter: strconv.Itoa(1 / guessesASecond)}
	}
	if wrong, err = look(); err != nil || !wrong {
		return wrong, err
	}
	if own == nil {
		g.makeRoom(now)
		own = rate.NewLimiter(guessesASecond, guessesAtOnce)
		g.of[from] = own
	}
	own.AllowN(now, 1)
	return true, nil
}

// makeRoom forgets who may guess as often as somebody new, or else anybody.
func (g *guesses) makeRoom(now time.Time) {
	if len(g.of) < maxGuessers {
		return
	}
	for from, own := range g.of {
		if own.TokensAt(now) >= guessesAtOnce {
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
