// Package api is the HTTP API of the control plane: policies come in, their
// history and what proxies made of them come out.
//
// Its invariant: a revision that it has acknowledged is durable, and was found
// valid by the same reading that the command line and the filter do. Every
// answer but a metrics page is JSON, errors too. It must never log a token or
// the text of a policy, and must never import the command line.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// Options of the API. Store and XDS are required.
type Options struct {
	Store store.Store
	XDS   *xds.Server
	// Identify tells who makes a request, false if nobody known does. Without
	// it anyone may call and is an admin.
	Identify func(*http.Request) (access.Caller, bool)
	Fleet    *manage.Fleet // how proxies are asked about counters; nil: they are not
	Log      *slog.Logger  // default: nothing
}

type server struct {
	store    store.Store
	xds      *xds.Server
	identify func(*http.Request) (access.Caller, bool)
	fleet    *manage.Fleet
	refusals *refusals
	memory   *memory
	judging  turn
	log      *slog.Logger

	backups sync.Mutex // held while one is sent
}

// New returns the API's handler.
func New(o Options) http.Handler { return newServer(o).handler() }

func newServer(o Options) *server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &server{
		store: o.Store, xds: o.XDS, identify: o.Identify, fleet: o.Fleet, refusals: newRefusals(o.Log),
		memory: newMemory(), judging: newTurn(), log: o.Log,
	}
}

// Problem is a policyfile.Problem as JSON.
type Problem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// maxProblems is more than anybody mends at a time.
const maxProblems = 100

// Problems turns problems into JSON's form, never nil. It keeps the first ones
// and counts the rest.
func Problems(list []policyfile.Problem) []Problem {
	if more := len(list) - maxProblems; more > 0 {
		list = append(list[:maxProblems:maxProblems], policyfile.Problem{Message: fmt.Sprintf("and %d more", more)})
	}
	problems := make([]Problem, 0, len(list))
	for _, p := range list {
		problems = append(problems, Problem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message})
	}
	return problems
}

// Policy turns a Problem back.
func (p Problem) Policy() policyfile.Problem {
	return policyfile.Problem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message}
}

// Error is the body of every answer that is none.
type Error struct {
	Error    string    `json:"error"`
	Problems []Problem `json:"problems,omitempty"` // of a policy
}

func fail(w http.ResponseWriter, code int, err error) {
	body := Error{Error: err.Error()}
	var problems policyfile.Errors
	if errors.As(err, &problems) {
		body.Error = "policy is not valid"
		body.Problems = Problems(problems)
	}
	answer(w, code, body)
}

// failStore answers with what the store said.
func (s *server) failStore(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, store.ErrNotFound):
		fail(w, http.StatusNotFound, err)
		return
	case errors.Is(err, errBusy):
		busy(w, err)
		return
	case r.Context().Err() != nil:
		return // the caller has gone
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
	if err := s.store.Healthy(r.Context()); err != nil {
		s.failStore(w, r, err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "ok"})
}
