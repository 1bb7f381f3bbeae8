package api

import (
	"log/slog"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
)

// refusals counts and logs the requests that were refused because of their caller.
type refusals struct {
	log   *slog.Logger
	total *prometheus.CounterVec
}

func newRefusals(log *slog.Logger) *refusals {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "sluice", Name: "http_refused_total",
		Help: "HTTP requests refused because of their caller: 401 unknown callers, " +
			"403 callers without the role and pages of other origins.",
	}, []string{"code"})
	// An alert can only see a counter rise that was there before.
	total.WithLabelValues("401")
	total.WithLabelValues("403")
	return &refusals{log: lograte.NewLimit(1).Logger(log), total: total}
}

// note never sees the credential: neither header nor URL are logged.
func (f *refusals) note(r *http.Request, code int, err error) {
	f.total.WithLabelValues(strconv.Itoa(code)).Inc()
	who := access.FromContext(r.Context()).Name
	f.log.Warn("request refused", "code", code, "from", peer(r), "who", who, "reason", err)
}
