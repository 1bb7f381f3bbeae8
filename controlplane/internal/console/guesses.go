package console

import (
	"net/http"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/conns"
	"github.com/sluice-ratelimit/sluice/shared/origin"
)

// guesses bounds how often an address shows wrong tokens. A right one costs nothing,
// but waits while its address may not guess.
type guesses struct {
	now func() time.Time

	mu    sync.Mutex // held while a token is looked at: guesses at the same time count too
	wrong origin.Guesses
}

func newGuesses(now func() time.Time) *guesses { return &guesses{now: now} }

// try looks at a token of somebody at the address, unless too many were wrong.
func (g *guesses) try(address string, look func() (wrong bool, err error)) (wrong bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, from := g.now().UnixNano(), conns.Origin(address)
	if g.wrong.Refuses(from, now) {
		return false, &failure{code: http.StatusTooManyRequests, text: "too many wrong tokens: try again in 1 s", retryAfter: "1"}
	}
	if wrong, err = look(); err == nil && wrong {
		g.wrong.Add(from, now)
	}
	return wrong, err
}
