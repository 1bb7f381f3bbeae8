package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// route is one request of the API and the role that it needs.
type route struct {
	pattern string
	role    access.Role
	handle  http.HandlerFunc
}

// routes lists every request but /healthz, which anyone may make. What a
// handler changes beyond its role's reach, it checks itself.
func (s *server) routes() []route {
	routes := []route{
		{"POST /v1/policies", access.Apply, s.apply},
		{"GET /v1/policies", access.Read, s.history},
		{"GET /v1/policies/{revision}", access.Read, s.get},
		{"POST /v1/rollback/{revision}", access.Apply, s.rollback},
		{"GET /v1/revisions/{revision}/wait", access.Read, s.wait},
		{"GET /v1/status", access.Read, s.status},
		{"POST /v1/explain", access.Read, s.explain},
		{"GET /v1/audit", access.Read, s.audit},
		{"GET /v1/backup", access.Admin, s.backup}, // every policy and the audit log
		{"GET /metrics", access.Read, s.metrics().ServeHTTP},
		{"/", access.Read, s.unknown},
	}
	for _, op := range manage.Operations {
		role := access.Read
		if op.Changes {
			role = access.Admin
		}
		routes = append(routes, route{"POST /v1/counters/" + op.Name, role, s.counters(op)})
	}
	return routes
}

func (s *server) handler() http.Handler {
	guarded := http.NewServeMux()
	for _, route := range s.routes() {
		guarded.HandleFunc(route.pattern, s.needs(route.role, route.handle))
	}
	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", s.healthy)
	open.Handle("/", s.identified(guarded))

	// A page in a browser must not be able to apply a policy, neither on
	// loopback, where nobody is asked for a token, nor with a certificate that
	// the browser adds by itself.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, http.StatusForbidden, errors.New("cross-origin request refused"))
	}))
	return origin.Handler(open)
}

// identified lets requests of known callers through and tells the handlers who
// calls.
func (s *server) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := access.Anyone(peer(r))
		if s.identify != nil {
			var known bool
			if caller, known = s.identify(r); !known {
				w.Header().Set("WWW-Authenticate", `Bearer realm="sluice"`)
				s.refuse(w, r, http.StatusUnauthorized, errors.New("bearer token missing or wrong"))
				return
			}
			caller.Address = peer(r)
		} else if err := checkLocalName(r); err != nil {
			s.refuse(w, r, http.StatusForbidden, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(access.NewContext(r.Context(), caller)))
	})
}

// needs lets only callers with the role through.
func (s *server) needs(role access.Role, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := missing(r.Context(), role, r.Pattern); err != nil {
			s.refuse(w, r, http.StatusForbidden, err)
			return
		}
		next(w, r)
	}
}

// missing is the error of a caller that lacks the role which something needs.
func missing(ctx context.Context, role access.Role, what string) error {
	caller := access.FromContext(ctx)
	if caller.Role >= role {
		return nil
	}
	return &forbiddenError{fmt.Sprintf("%s needs the role %s: %s has the role %s", what, role, caller.Name, caller.Role)}
}

// forbiddenError says which role a caller lacks.
type forbiddenError struct{ text string }

func (e *forbiddenError) Error() string { return e.text }

// peer returns the address of the connection's other end, without the port.
func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
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
		return fmt.Errorf("host %s is not a name of loopback: use localhost or an address, or give serve an access file", shown(host))
	}
	return nil
}

func (s *server) unknown(w http.ResponseWriter, r *http.Request) {
	fail(w, http.StatusNotFound, fmt.Errorf("no %s in this API", printable.Cut(r.Method+" "+r.URL.Path, maxShown)))
}
