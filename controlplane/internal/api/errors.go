package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Error is the body of every answer that says why a request failed.
type Error struct {
	Error    string               `json:"error"`
	Problems []policyfile.Problem `json:"problems,omitempty"` // of a policy
}

// maxProblems is more than a person mends at a time.
const maxProblems = 100

// Problems keeps the first ones and counts the rest. It is never nil, for JSON.
func Problems(list []policyfile.Problem) []policyfile.Problem {
	if more := len(list) - maxProblems; more > 0 {
		return append(list[:maxProblems:maxProblems], policyfile.Problem{Message: fmt.Sprintf("and %d more", more)})
	}
	return append([]policyfile.Problem{}, list...)
}

// failure is an error with its status code.
type failure struct {
	code       int
	err        error
	retryAfter string // seconds, "" for none
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// refusal is a failure with a text of its own.
func refusal(code int, format string, args ...any) error {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

func badRequest(format string, args ...any) error {
	return refusal(http.StatusBadRequest, format, args...)
}

// later is the failure of what may succeed after so many seconds.
func later(seconds string, err error) *failure {
	return &failure{code: http.StatusServiceUnavailable, err: err, retryAfter: seconds}
}

// fail answers with an error. What is no failure comes from the store.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var problems policyfile.Errors
	var f *failure
	switch {
	case errors.As(err, &problems):
		answer(w, http.StatusUnprocessableEntity, Error{Error: "policy is not valid", Problems: Problems(problems)})
	case errors.As(err, &f):
		switch f.code {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
			s.refusals.note(r, f.code, f)
		}
		if f.retryAfter != "" {
			w.Header().Set("Retry-After", f.retryAfter)
		}
		answer(w, f.code, Error{Error: f.Error()})
	case errors.Is(err, store.ErrNotFound):
		answer(w, http.StatusNotFound, Error{Error: err.Error()})
	case r.Context().Err() != nil: // the caller has gone
	case errors.Is(err, store.ErrCutOff), errors.Is(err, quotaservice.ErrStarting):
		answer(w, http.StatusServiceUnavailable, Error{Error: err.Error()})
	default:
		if errors.Is(err, store.ErrDamaged) {
			err = fmt.Errorf("%w: apply the policy again, or restore a backup", err)
		}
		s.Log.Error("store", "path", r.URL.Path, "error", err)
		answer(w, http.StatusInternalServerError, Error{Error: err.Error()})
	}
}
