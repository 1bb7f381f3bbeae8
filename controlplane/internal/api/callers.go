package api

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/origin"
)

// identified lets requests of known callers through, with the caller in their
// context.
func (s *server) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := access.Anyone(peer(r))
		if s.Identify != nil {
			known, ok := s.Identify(r)
			if !ok {
				w.Header().Set("WWW-Authenticate", `Bearer realm="sluice"`)
				s.fail(w, r, s.refusals.unknown(r))
				return
			}
			caller = known
			caller.Address = peer(r)
			listener.LetIn(r)
		} else if err := checkLocalName(r); err != nil {
			s.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(access.NewContext(r.Context(), caller)))
	})
}

// peer returns the address of the connection's other end, without the port.
func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// Caller answers GET /v1/caller: the caller's name and roles.
type Caller struct {
	Name     string                 `json:"name"` // "" where anyone may call
	Role     access.Role            `json:"role"` // with every policy
	Policies map[string]access.Role `json:"policies,omitempty"`
}

func (s *server) caller(w http.ResponseWriter, r *request) error {
	caller := access.FromContext(r.Context())
	answer(w, http.StatusOK, Caller{caller.Name, caller.Role, caller.Policies})
	return nil
}

// checkLocalName refuses requests that reach loopback in plain text under a
// name from elsewhere. A page in a browser can have its own name resolve to
// this machine, and would then not be of another origin.
func checkLocalName(r *http.Request) error {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	host := (&url.URL{Host: r.Host}).Hostname()
	_, err := netip.ParseAddr(host)
	named := err != nil && host != "" && !manage.IsLoopback(host)
	if named && r.TLS == nil && local != nil && local.IP.IsLoopback() {
		return refusal(http.StatusForbidden,
			"host %s is not a name of loopback: use localhost or an address, or give serve an access file",
			shown(host))
	}
	return nil
}

func (s *server) unknown(_ http.ResponseWriter, r *request) error {
	return refusal(http.StatusNotFound, "no %s in this API", printable.Cut(r.Method+" "+r.URL.Path, maxShown))
}

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
			"403 callers without the role and pages of another origin, 429 wrong tokens from an address that sent too many.",
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

// unknown is the error of an unknown caller. Wrong tokens slow their address. A right
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
