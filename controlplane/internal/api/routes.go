package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// request is one that a route has read as far as its row says.
type request struct {
	*http.Request
	query
	body []byte
}

// handler answers a request, or returns why it cannot.
type handler func(w http.ResponseWriter, r *request) error

// route is one request of the API and the role that it needs.
type route struct {
	pattern string
	about   about
	role    access.Role
	handle  handler
	takes   []string // parameters of the URL, each at most once; nil: the handler reads none, and any are let pass
	body    *body    // nil: none is read
}

// about says with which policies a request needs its role.
type about int

const (
	all     about = iota // with every policy
	ofQuery              // with the one of the parameter policy, by default the default
	anyOf                // like ofQuery; without the parameter with every policy
	anyRole              // with at least one: the handler checks the policies that the body names, if it reads one
)

// noRole is the role of what anyone may ask for.
const noRole access.Role = 0

// policy is the one that a request is about by its URL.
func (q query) policy() string { return cmp.Or(q.get("policy"), store.DefaultPolicy) }

// body is what a request may have in it.
type body struct {
	maxBytes int
	tooLarge string // says that it is larger
}

// read reads the body of a request whose caller is known.
func (b *body) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(b.maxBytes)))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, refusal(http.StatusRequestEntityTooLarge, b.tooLarge, b.maxBytes)
	}
	if err != nil {
		return nil, badRequest("read the body: %w", err)
	}
	return text, nil
}

// routes lists every request but /healthz, which anyone may make. What a
// handler changes beyond its role's reach, it checks itself.
func (s *server) routes() []route {
	routes := []route{
		{"POST /v1/policies", anyRole, access.Apply, s.apply,
			[]string{"file", "wasm", "base", "canary", "promote_after", "max_denied", "abort_on_denied"},
			&body{policy.MaxBytes, "policy is larger than %d bytes (1 MiB), the most a policy may have"}},
		{"POST /v1/changes", anyRole, access.Apply, s.applySeveral, []string{},
			&body{maxChanges, "the policies are larger than %d bytes (8 MiB) together: apply them in parts"}},
		{"GET /v1/policies", ofQuery, access.Read, s.history, []string{"policy", "limit"}, nil},
		{"GET /v1/policies/{revision}", ofQuery, access.Read, s.get, []string{"policy"}, nil},
		{"POST /v1/rollback/{revision}", ofQuery, access.Apply, s.rollback, []string{"policy", "base"}, nil},
		{"POST /v1/promote", ofQuery, access.Apply, s.end("promote", store.Promoted), []string{"policy"}, nil},
		{"POST /v1/abort", ofQuery, access.Apply, s.end("abort", store.Aborted), []string{"policy"}, nil},
		{"GET /v1/revisions/{revision}/wait", ofQuery, access.Read, s.wait, []string{"policy", "timeout"}, nil},
		{"GET /v1/status", anyOf, access.Read, s.status, []string{"policy"}, nil},
		{"GET /v1/rates", ofQuery, access.Read, s.ratesOf, []string{"policy"}, nil},
		{"GET /v1/caller", anyRole, access.Read, s.caller, nil, nil},
		{"POST /v1/explain", ofQuery, access.Read, s.explain,
			[]string{"policy", "timeout"}, &body{manage.MaxDescribed, described}},
		{"GET /v1/audit", anyOf, access.Read, s.audit, []string{"policy", "limit", "before"}, nil},
		{"GET /v1/backup", all, access.Admin, s.backup, nil, nil}, // every policy and the audit log
		{"GET /metrics", all, access.Read, s.metrics(), nil, nil},
		{"/", anyRole, access.Read, s.unknown, nil, nil},
	}
	for _, op := range manage.Operations {
		routes = append(routes, route{"POST /v1/counters/" + op.Name, anyRole, roleOf(op), s.counters(op),
			nil, &body{maxForm, "the form is larger than %d bytes"}})
	}
	return append(routes, s.callRoutes()...)
}

// callRoutes lists the request that is a rate limit call, if somebody answers it. What a call counts
// is kept, so it takes more than the role read.
func (s *server) callRoutes() []route {
	if s.Calls == nil {
		return nil
	}
	call := func(w http.ResponseWriter, r *request) error {
		s.Calls.ServeHTTP(w, r.Request)
		return nil
	}
	return []route{{"POST /json", all, access.Apply, call, nil, nil}}
}

func roleOf(op manage.Operation) access.Role {
	if op.Changes {
		return access.Admin
	}
	return access.Read
}

// mux answers the routes, /healthz, and /healthcheck of rate limit calls.
func (s *server) mux(routes []route) *http.ServeMux {
	// A page in a browser must not be able to apply a policy, neither on
	// loopback, where no token is needed, nor with a certificate that the browser
	// adds by itself.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, refusal(http.StatusForbidden, "cross-origin request refused"))
	}))
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", origin.Handler(s.needs(route{about: all, role: noRole, handle: s.healthy})))
	if s.Calls != nil {
		mux.Handle("GET /healthcheck", origin.Handler(s.Calls))
	}
	for _, route := range routes {
		mux.Handle(route.pattern, origin.Handler(s.identified(s.needs(route))))
	}
	return mux
}

// needs lets only callers with the route's role through, and reads what the route takes.
func (s *server) needs(o route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.serve(w, &request{Request: r, query: query(r.URL.Query())}, &o); err != nil {
			s.fail(w, r, err)
		}
	}
}

func (s *server) serve(w http.ResponseWriter, r *request, o *route) (err error) {
	if err := o.admit(r); err != nil {
		return err
	}
	if o.takes != nil {
		if err := r.check(o.takes); err != nil {
			return err
		}
	}
	if o.body != nil {
		r.body, err = o.body.read(w, r.Request)
		if err != nil {
			return err
		}
	}
	return o.handle(w, r)
}

// admit refuses a caller that lacks the route's role.
func (o *route) admit(r *request) error {
	caller := access.FromContext(r.Context())
	switch {
	case o.about == anyRole && caller.Anywhere() >= o.role:
		return nil
	case o.about == ofQuery, o.about == anyOf && r.get("policy") != "":
		return needRole(r.Context(), r.policy(), o.role, r.Pattern)
	case caller.Role < o.role && caller.Anywhere() >= o.role:
		return refusal(http.StatusForbidden,
			"%s needs the role %s with every policy: %s has the role %s with all", r.Pattern, o.role, caller.Name, caller.Role)
	}
	return needRole(r.Context(), "", o.role, r.Pattern)
}

// needRole refuses a caller that lacks the role with a policy which something needs.
func needRole(ctx context.Context, policy string, role access.Role, what string) error {
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

const (
	maxFileName = 255
	maxWasm     = 4096 // the longest path on Linux
	maxShown    = 100
)

// query has the parameters behind the ? of a URL.
type query url.Values

// check refuses parameters that a request may not have, and those that are there twice.
func (r *request) check(known []string) error {
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		return badRequest("the query of the URL is malformed: escape it as NAME=VALUE&NAME=VALUE")
	}
	for _, name := range slices.Sorted(maps.Keys(r.query)) {
		switch given := r.query[name]; {
		case !slices.Contains(known, name):
			return badRequest("no parameter %s here: known are %q", shown(name), known)
		case len(given) > 1:
			return badRequest("parameter %s is given %d times: give it once", name, len(given))
		}
	}
	return nil
}

func (q query) get(name string) string { return url.Values(q).Get(name) }
func (q query) has(name string) bool   { return url.Values(q).Has(name) }

// number returns a parameter from 1, 0 if it is not given.
func (q query) number(name string, maximum uint64) (uint64, error) {
	text := q.get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < 1 || n > maximum {
		return 0, badRequest("%s %s is not a number from 1 to %d", name, shown(text), maximum)
	}
	return n, nil
}

// shown quotes what a caller sent, shortened.
func shown(text string) string { return strconv.Quote(printable.Cut(text, maxShown)) }

// CheckWasm refuses a text that cannot be a path on another machine.
func CheckWasm(wasm string) error {
	switch {
	case wasm == "":
		return nil
	case len(wasm) > maxWasm:
		return fmt.Errorf("wasm path has %d bytes, at most %d are allowed", len(wasm), maxWasm)
	case !printable.Is(wasm):
		return errors.New("wasm path has bytes that cannot be printed: it must be UTF-8 without control characters")
	case !path.IsAbs(wasm):
		return fmt.Errorf("wasm path %s is relative: it must be an absolute path on the proxies' machines", shown(wasm))
	case path.Clean(wasm) != wasm || wasm == "/":
		return fmt.Errorf("wasm path %s is not clean: %s is the file it names", shown(wasm), shown(path.Clean(wasm)))
	}
	return nil
}

func checkFileName(name string) error {
	switch {
	case len(name) > maxFileName:
		return fmt.Errorf("file name has %d bytes, at most %d are allowed", len(name), maxFileName)
	case !printable.Is(name):
		return errors.New("file name has bytes that cannot be printed: it must be UTF-8 without control characters")
	}
	return nil
}
