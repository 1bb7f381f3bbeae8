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

// handler answers a request, or returns why it cannot.
type handler func(w http.ResponseWriter, r *http.Request) error

// route is one request of the API and the role that it needs.
type route struct {
	pattern string
	role    access.Role
	handle  handler
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
		{"GET /v1/caller", access.Read, s.caller},
		{"POST /v1/explain", access.Read, s.explain},
		{"GET /v1/audit", access.Read, s.audit},
		{"GET /v1/backup", access.Admin, s.backup}, // every policy and the audit log
		{"GET /metrics", access.Read, s.metrics()},
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

func (s *server) handler(routes []route) http.Handler {
	guarded := http.NewServeMux()
	for _, route := range routes {
		guarded.HandleFunc(route.pattern, s.needs(route.role, route.handle))
	}
	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", s.needs(0, s.healthy))
	open.Handle("/", s.identified(guarded))

	// A page in a browser must not be able to apply a policy, neither on
	// loopback, where no token is needed, nor with a certificate that the browser
	// adds by itself.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, forbidden("cross-origin request refused"))
	}))
	return origin.Handler(open)
}

// identified lets requests of known callers through, with the caller in their
// context.
func (s *server) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := access.Anyone(peer(r))
		if s.identify != nil {
			var known bool
			if caller, known = s.identify(r); !known {
				w.Header().Set("WWW-Authenticate", `Bearer realm="sluice"`)
				s.fail(w, r, &failure{code: http.StatusUnauthorized, err: errors.New("bearer token missing or wrong")})
				return
			}
			caller.Address = peer(r)
		} else if err := checkLocalName(r); err != nil {
			s.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(access.NewContext(r.Context(), caller)))
	})
}

// needs lets only callers with the role through.
func (s *server) needs(role access.Role, handle handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := missing(r.Context(), role, r.Pattern)
		if err == nil {
			err = handle(w, r)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	}
}

// missing is the error of a caller that lacks the role which something needs.
func missing(ctx context.Context, role access.Role, what string) error {
	caller := access.FromContext(ctx)
	if caller.Role >= role {
		return nil
	}
	return forbidden("%s needs the role %s: %s has the role %s", what, role, caller.Name, caller.Role)
}

func forbidden(format string, args ...any) error {
	return &failure{code: http.StatusForbidden, err: fmt.Errorf(format, args...)}
}

// peer returns the address of the connection's other end, without the port.
func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// Caller answers GET /v1/caller: who asks, and what they may do.
type Caller struct {
	Name string      `json:"name"` // "" where anyone may call
	Role access.Role `json:"role"`
}

func (s *server) caller(w http.ResponseWriter, r *http.Request) error {
	caller := access.FromContext(r.Context())
	answer(w, http.StatusOK, Caller{caller.Name, caller.Role})
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
		return forbidden("host %s is not a name of loopback: use localhost or an address, or give serve an access file",
			shown(host))
	}
	return nil
}

func (s *server) unknown(_ http.ResponseWriter, r *http.Request) error {
	path := printable.Cut(r.Method+" "+r.URL.Path, maxShown)
	return &failure{code: http.StatusNotFound, err: fmt.Errorf("no %s in this API", path)}
}
