package api

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/shared/origin"
)

// refusals counts and logs the requests that were refused because of their caller.
type refusals struct {
	log   *slog.Logger
	total *prometheus.CounterVec

	mu      sync.Mutex
	guesses origin.Guesses // wrong tokens
}

func newRefusals(log *slog.Logger) *refusals {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "sluice", Name: "http_refused_total",
		Help: "HTTP requests refused because of their caller: 401 unknown callers, " +
			"403 callers without the role and pages of other origins, 429 addresses with too many wrong tokens.",
	}, []string{"code"})
	// An alert can only see a counter rise that was there before.
	for _, code := range []string{"401", "403", "429"} {
		total.WithLabelValues(code)
	}
	return &refusals{log: lograte.NewLimit(1).Logger(log), total: total}
}

// errGuesses says that too many wrong tokens came from an address.
var errGuesses = &failure{
	code: http.StatusTooManyRequests, retryAfter: "1",
	err: errors.New("bearer token wrong, as were too many from this address: try again in 1 s"),
}

// unknown is the error of a caller that nobody knows. Wrong tokens slow their address. A right
// one never comes here: behind a shared ingress all callers have one address.
func (f *refusals) unknown(r *http.Request) error {
	if access.ShowsToken(r) {
		from, now := cmp.Or(origin.Of(r.RemoteAddr), r.RemoteAddr), time.Now().UnixNano()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.guesses.Refuses(from, now) {
			return errGuesses
		}
		f.guesses.Add(from, now)
	}
	return refusal(http.StatusUnauthorized, "bearer token missing or wrong")
}

// note never sees the credential: neither header nor URL are logged.
func (f *refusals) note(r *http.Request, code int, err error) {
	f.total.WithLabelValues(strconv.Itoa(code)).Inc()
	who := access.FromContext(r.Context()).Name
	f.log.Warn("request refused", "code", code, "from", peer(r), "who", who, "reason", err)
}
