package api

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
)

// refusals counts the requests that were refused for who made them, and logs
// at most one of them a second, so that a flood does not fill the log.
type refusals struct {
	log   *slog.Logger
	total *prometheus.CounterVec

	mu       sync.Mutex
	next     time.Time // when the next may be logged
	unlogged int       // since the last line
}

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: log, total: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "sluice", Name: "http_refused_total",
		Help: "HTTP requests refused for who made them: 401 unknown callers, 403 callers without the role and pages of other origins.",
	}, []string{"code"})}
}

// refuse answers 401 or 403.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, code int, err error) {
	s.refusals.note(r, code, err, time.Now())
	fail(w, code, err)
}

// note never sees the credential: neither header nor URL are logged.
func (f *refusals) note(r *http.Request, code int, err error, now time.Time) {
	f.total.WithLabelValues(map[int]string{http.StatusUnauthorized: "401", http.StatusForbidden: "403"}[code]).Inc()
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Before(f.next) {
		f.unlogged++
		return
	}
	f.log.Warn("request refused", "code", code, "from", peer(r), "who", access.FromContext(r.Context()).Name,
		"reason", err, "others_since_last", f.unlogged)
	f.next, f.unlogged = now.Add(time.Second), 0
}
