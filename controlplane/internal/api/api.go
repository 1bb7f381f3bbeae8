// Package api is the HTTP API of the control plane: policies come in, their
// history and what proxies made of them come out.
//
// Its invariant: a revision that it has acknowledged is durable, and was found
// valid by the same reading that the command line and the filter do. Every
// answer but a metrics page is JSON, errors too. It must never log a token or
// the text of a policy, and must never import the command line.
package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options of the API. Store and XDS are required.
type Options struct {
	Store store.Store
	XDS   *xds.Server
	Token string       // callers must bear it; empty = anyone may call
	Log   *slog.Logger // default: nothing
}

type server struct {
	store store.Store
	xds   *xds.Server
	log   *slog.Logger

	backups sync.Mutex // held while one is sent
}

// New returns the API's handler.
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{store: o.Store, xds: o.XDS, log: o.Log}
	guarded := http.NewServeMux()
	guarded.HandleFunc("POST /v1/policies", s.apply)
	guarded.HandleFunc("GET /v1/policies", s.history)
	guarded.HandleFunc("GET /v1/policies/{revision}", s.get)
	guarded.HandleFunc("POST /v1/rollback/{revision}", s.rollback)
	guarded.HandleFunc("GET /v1/revisions/{revision}/wait", s.wait)
	guarded.HandleFunc("GET /v1/status", s.status)
	guarded.HandleFunc("GET /v1/manage", s.manage)
	guarded.HandleFunc("GET /v1/backup", s.backup) // needs the role admin: it holds every policy and the audit log
	guarded.Handle("GET /metrics", metrics(o.XDS))
	guarded.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Errorf("no %s %s in this API", r.Method, r.URL.Path))
	})

	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", s.healthy)
	if o.Token != "" {
		open.Handle("/", bearer(o.Token, guarded))
	} else {
		open.Handle("/", localNames(guarded))
	}

	// A page in a browser on the same machine must not be able to apply a
	// policy to a server on loopback that asks for no token.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, errors.New("cross-origin request refused"))
	}))
	return origin.Handler(open)
}

// bearer lets only requests with the token through. Digests are compared, so
// that the time taken tells neither content nor length.
func bearer(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(given)))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="sluice"`)
			fail(w, http.StatusUnauthorized, errors.New("bearer token missing or wrong"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// localNames refuses requests that reach loopback in plain text under a name
// from elsewhere. A page in a browser can have its own name resolve to this
// machine, and would then not be of another origin.
func localNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		host := (&url.URL{Host: r.Host}).Hostname()
		_, err := netip.ParseAddr(host)
		named := err != nil && host != "" && host != "localhost"
		if named && r.TLS == nil && local != nil && local.IP.IsLoopback() {
			fail(w, http.StatusForbidden, fmt.Errorf("host %q is not a name of loopback: use localhost or an address, or give serve a token", host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Problem is a policy.Problem as JSON.
type Problem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// Problems turns problems into JSON's form, never nil.
func Problems(list []policy.Problem) []Problem {
	problems := make([]Problem, 0, len(list))
	for _, p := range list {
		problems = append(problems, Problem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message})
	}
	return problems
}

// Policy turns a Problem back.
func (p Problem) Policy() policy.Problem {
	return policy.Problem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message}
}

// Error is the body of every answer that is none.
type Error struct {
	Error    string    `json:"error"`
	Problems []Problem `json:"problems,omitempty"` // of a policy
}

func fail(w http.ResponseWriter, code int, err error) {
	body := Error{Error: err.Error()}
	var problems policy.Errors
	if errors.As(err, &problems) {
		body.Error = "policy is not valid"
		body.Problems = Problems(problems)
	}
	answer(w, code, body)
}

// failStore answers with what the store said.
func (s *server) failStore(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, store.ErrNotFound) {
		fail(w, http.StatusNotFound, err)
		return
	}
	if errors.Is(err, store.ErrDamaged) {
		err = fmt.Errorf("%w: apply the policy again, or restore a backup", err)
	}
	s.log.Error("store", "path", r.URL.Path, "error", err)
	fail(w, http.StatusInternalServerError, err)
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the caller has gone if this fails
}

func (s *server) healthy(w http.ResponseWriter, r *http.Request) {
	if _, err := s.store.History(r.Context(), 1); err != nil {
		s.failStore(w, r, err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "ok"})
}
