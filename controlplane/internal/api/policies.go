package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

const (
	// Current names the newest revision in a path.
	Current = "current"
	// Previous names the revision that a rollback goes to: the newest before the
	// current one that some proxy accepted, or else the one before the current
	// one.
	Previous = "previous"
)

// Applied answers POST /v1/policies and POST /v1/rollback/{revision}.
type Applied struct {
	store.Summary
	Warnings []Problem `json:"warnings"`
	Proxies  int       `json:"proxies"` // connected now
	// Changes is what becomes of each counter and of those that vanish, against
	// the revision before; null where there is none, or none that can be read.
	Changes []Change `json:"changes"`
}

// History answers GET /v1/policies.
type History struct {
	Revisions []store.Summary `json:"revisions"` // newest first
}

// Revision answers GET /v1/policies/{revision}.
type Revision struct {
	store.Summary
	YAML   string          `json:"yaml"`   // as given
	Policy json.RawMessage `json:"policy"` // as proxies get it
}

// history handles GET /v1/policies?limit=N.
func (s *server) history(w http.ResponseWriter, r *http.Request) {
	query, err := readQuery(r, "limit")
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	limit, err := query.number("limit", math.MaxInt32)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	list, err := s.store.History(r.Context(), int(limit))
	if err != nil {
		s.failStore(w, r, err)
		return
	}
	s.answerLarge(w, len(list)*512, History{Revisions: list})
}

// get handles GET /v1/policies/{revision}.
func (s *server) get(w http.ResponseWriter, r *http.Request) {
	number, err := s.number(r)
	if err != nil {
		s.failNumber(w, r, err)
		return
	}
	revision, err := s.store.Get(r.Context(), number)
	if err != nil {
		s.failStore(w, r, err)
		return
	}
	s.answerLarge(w, 3*(len(revision.YAML)+len(revision.JSON)),
		Revision{Summary: revision.Summary, YAML: string(revision.YAML), Policy: revision.JSON})
}

// errNumber says that a path names no revision at all.
var errNumber = errors.New("is not a revision: give a number from 1")

func (s *server) failNumber(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errNumber) {
		fail(w, http.StatusBadRequest, err)
		return
	}
	s.failStore(w, r, err)
}

// number reads the revision in a path.
func (s *server) number(r *http.Request) (uint64, error) {
	text := r.PathValue("revision")
	switch text {
	case Current:
		last, err := s.store.History(r.Context(), 1)
		if err != nil {
			return 0, err
		}
		if len(last) == 0 {
			return 0, fmt.Errorf("%w: nothing has been applied yet", store.ErrNotFound)
		}
		return last[0].Number, nil
	case Previous:
		return s.previous(r)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s %w, %q or %q", shown(text), errNumber, Current, Previous)
	}
	return n, nil
}

func (s *server) previous(r *http.Request) (uint64, error) {
	list, err := s.store.History(r.Context(), 0)
	if err != nil {
		return 0, err
	}
	if len(list) < 2 {
		return 0, fmt.Errorf("%w: there is none before the current one", store.ErrNotFound)
	}
	for _, revision := range list[1:] {
		if revision.Acked {
			return revision.Number, nil
		}
	}
	return list[1].Number, nil
}
