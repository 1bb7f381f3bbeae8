package api

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// handler answers a request, or returns why it cannot.
type handler func(w http.ResponseWriter, r *http.Request) error

// route is one request of the API and the role that it needs.
type route struct {
	pattern string
	about   about
	role    access.Role
	handle  handler
}

// about says with which policies a request needs its role.
type about int

const (
	all     about = iota // with every policy
	ofQuery              // with the one of the parameter policy, by default the default
	anyOf                // like ofQuery; without the parameter with every policy
	inBody               // with any: the handler checks those that the body names
)

// policyOf is the policy that a request is about by its URL.
func policyOf(r *http.Request) string {
	return cmp.Or(r.URL.Query().Get("policy"), store.DefaultPolicy)
}

// routes lists every request but /healthz, which anyone may make. What a
// handler changes beyond its role's reach, it checks itself.
func (s *server) routes() []route {
	routes := []route{
		{"POST /v1/policies", inBody, access.Apply, s.apply},
		{"POST /v1/changes", inBody, access.Apply, s.applySeveral},
		{"GET /v1/policies", ofQuery, access.Read, s.history},
		{"GET /v1/policies/{revision}", ofQuery, access.Read, s.get},
		{"POST /v1/rollback/{revision}", ofQuery, access.Apply, s.rollback},
		{"POST /v1/promote", ofQuery, access.Apply, s.end("promote", store.Promoted)},
		{"POST /v1/abort", ofQuery, access.Apply, s.end("abort", store.Aborted)},
		{"GET /v1/revisions/{revision}/wait", ofQuery, access.Read, s.wait},
		{"GET /v1/status", anyOf, access.Read, s.status},
		{"GET /v1/caller", inBody, access.Read, s.caller},
		{"POST /v1/explain", ofQuery, access.Read, s.explain},
		{"GET /v1/audit", anyOf, access.Read, s.audit},
		{"GET /v1/backup", all, access.Admin, s.backup}, // every policy and the audit log
		{"GET /metrics", all, access.Read, s.metrics()},
		{"/", inBody, access.Read, s.unknown},
	}
	for _, op := range manage.Operations {
		routes = append(routes, route{"POST /v1/counters/" + op.Name, inBody, roleOf(op), s.counters(op)})
	}
	return routes
}

func roleOf(op manage.Operation) access.Role {
	if op.Changes {
		return access.Admin
	}
	return access.Read
}

func (s *server) handler(routes []route) http.Handler {
	guarded := http.NewServeMux()
	for _, route := range routes {
		guarded.HandleFunc(route.pattern, s.needs(route))
	}
	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", s.needs(route{handle: s.healthy}))
	open.Handle("/", s.identified(guarded))

	// A page in a browser must not be able to apply a policy, neither on
	// loopback, where no token is needed, nor with a certificate that the browser
	// adds by itself.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, refusal(http.StatusForbidden, "cross-origin request refused"))
	}))
	return origin.Handler(open)
}

// identified lets requests of known callers through, with the caller in their
// context.
func (s *server) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := access.Anyone(peer(r))
		if s.Identify != nil {
			var known bool
			if caller, known = s.Identify(r); !known {
				w.Header().Set("WWW-Authenticate", `Bearer realm="sluice"`)
				s.fail(w, r, refusal(http.StatusUnauthorized, "bearer token missing or wrong"))
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

// needs lets only callers with the route's role through.
func (s *server) needs(o route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := o.missing(r)
		if err == nil {
			err = o.handle(w, r)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	}
}

// missing is the error of a caller that lacks the route's role.
func (o route) missing(r *http.Request) error {
	caller := access.FromContext(r.Context())
	switch {
	case o.about == inBody && caller.Anywhere() >= o.role:
		return nil
	case o.about == ofQuery, o.about == anyOf && r.URL.Query().Get("policy") != "":
		return missing(r.Context(), policyOf(r), o.role, r.Pattern)
	case caller.Role < o.role && caller.Anywhere() >= o.role:
		return refusal(http.StatusForbidden,
			"%s needs the role %s with every policy: %s has the role %s with all", r.Pattern, o.role, caller.Name, caller.Role)
	}
	return missing(r.Context(), "", o.role, r.Pattern)
}

// missing is the error of a caller that lacks the role with a policy which something
// needs.
func missing(ctx context.Context, policy string, role access.Role, what string) error {
	caller := access.FromContext(ctx)
	has := caller.On(policy)
	switch {
	case has >= role:
		return nil
	case len(caller.Policies) > 0 && policy != "":
		return refusal(http.StatusForbidden,
			"%s needs the role %s with the policy %s: %s has the role %s with it", what, role, shown(policy), caller.Name, has)
	}
	return refusal(http.StatusForbidden, "%s needs the role %s: %s has the role %s", what, role, caller.Name, has)
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
	Name     string                 `json:"name"` // "" where anyone may call
	Role     access.Role            `json:"role"` // with every policy
	Policies map[string]access.Role `json:"policies,omitempty"`
}

func (s *server) caller(w http.ResponseWriter, r *http.Request) error {
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
		return refusal(http.StatusForbidden, "host %s is not a name of loopback: use localhost or an address, or give serve an access file",
			shown(host))
	}
	return nil
}

func (s *server) unknown(_ http.ResponseWriter, r *http.Request) error {
	return refusal(http.StatusNotFound, "no %s in this API", printable.Cut(r.Method+" "+r.URL.Path, maxShown))
}
