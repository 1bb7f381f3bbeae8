package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/rollouts"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

const (
	defaultWait = 30 * time.Second
	// MaxWait is the longest wait for the proxies' replies.
	MaxWait = 10 * time.Minute
)

// Status answers GET /v1/status.
type Status struct {
	Policies []PolicyStatus    `json:"policies"` // by name
	Proxies  []xds.ProxyStatus `json:"proxies"`
	Untaken  int               `json:"untaken"`            // connected proxies that no policy is for
	CutOff   string            `json:"cut_off,omitempty"`  // why nothing can be changed here: the store is out of reach
	Behind   int               `json:"behind,omitempty"`   // connected proxies with newer revisions than this serve has
	Starting string            `json:"starting,omitempty"` // why rules that hold over all proxies wait

	// Apart says why rules of scope cluster admit more than their limit, and what to do.
	Apart string `json:"quotas_apart,omitempty"`
}

// PolicyStatus is how one policy stands.
type PolicyStatus struct {
	Policy    string             `json:"policy"`
	For       *selector.Selector `json:"for,omitempty"`     // its proxies; null: those that no other policy takes
	Current   *store.Summary     `json:"current"`           // what a new proxy gets, null if there is nothing
	Newest    *store.Summary     `json:"newest,omitempty"`  // if it is another: refused, damaged, or a canary
	Damaged   []uint64           `json:"damaged,omitempty"` // its revisions in the store, which are not pushed
	Connected int                `json:"connected"`         // proxies that it is for
	Canary    *rollouts.Status   `json:"canary,omitempty"`  // of the newest, while it lasts
	Aborted   *store.Summary     `json:"aborted,omitempty"` // a canary after these that was aborted by itself
}

// status handles GET /v1/status?policy=NAME, by default of all policies.
func (s *server) status(w http.ResponseWriter, r *request) error {
	ledger, only := s.XDS.Ledger(), r.get("policy")
	names := ledger.Policies()
	if only != "" {
		if !slices.Contains(names, only) {
			return fmt.Errorf("%w: %s", store.ErrNotFound, s.nothing(only))
		}
		names = []string{only}
	}
	st := Status{Policies: []PolicyStatus{}, Proxies: ledger.Proxies()}
	for _, name := range names {
		of, err := s.statusOf(r.Context(), name)
		if err != nil {
			return err
		}
		st.Policies = append(st.Policies, of)
		isApart, err := s.countsApart(r.Context(), ledger.ForNewProxy(name))
		if err != nil {
			return err
		}
		if isApart {
			st.Apart = countedApart
		}
	}
	if only != "" {
		st.Proxies = slices.DeleteFunc(st.Proxies, func(p xds.ProxyStatus) bool { return p.Policy != only })
	} else {
		st.Untaken = ledger.Untaken()
		st.Behind, _ = ledger.Ahead()
	}
	if err := s.Store.Healthy(r.Context()); errors.Is(err, store.ErrCutOff) {
		st.CutOff = err.Error()
	}
	switch err := s.starting(r.Context()); {
	case errors.Is(err, quotaservice.ErrStarting):
		st.Starting = err.Error()
	case err != nil:
		return err
	}
	answer(w, http.StatusOK, st)
	return nil
}

func (s *server) statusOf(ctx context.Context, policy string) (st PolicyStatus, err error) {
	ledger := s.XDS.Ledger()
	st = PolicyStatus{
		Policy: policy, Damaged: ledger.Damaged(policy), Connected: ledger.Connected(policy),
		Canary: s.rollouts.Status(policy, time.Now()),
	}
	number := ledger.ForNewProxy(policy)
	inForce := func(s store.Summary) bool { return s.Number == number }
	var list []store.Summary // as far back as the revision in force, which is among the newest
	for limit, isAll := 1, false; !isAll && !slices.ContainsFunc(list, inForce); limit *= 16 {
		list, err = s.Store.History(ctx, policy, limit)
		if err != nil {
			return st, err
		}
		if len(list) > 0 && aborted(list[0]) && list[0].Rollout.Why != "" {
			last := list[0]
			st.Aborted = &last
		}
		isAll, list = len(list) < limit, slices.DeleteFunc(list, aborted)
	}
	if len(list) == 0 {
		return st, nil
	}
	newest := list[0]
	st.For = newest.Proxies
	if newest.Number != number {
		st.Newest = &newest
	}
	if i := slices.IndexFunc(list, inForce); i >= 0 {
		st.Current = &list[i]
	}
	return st, nil
}

// ratesOf handles GET /v1/rates?policy=NAME. Where the proxies cannot be asked now, a note says why.
func (s *server) ratesOf(w http.ResponseWriter, r *request) error {
	name, note := r.policy(), ""
	if name != store.DefaultPolicy && !slices.Contains(s.XDS.Ledger().Policies(), name) {
		return fmt.Errorf("%w: %s", store.ErrNotFound, s.nothing(name))
	}
	if err := s.rates.Update(r.Context(), name); isLater(err) {
		note = err.Error()
	} else if err != nil {
		return err
	}
	list, err := s.rates.List(r.Context(), name)
	if err != nil {
		return err
	}
	list.Note = note
	answer(w, http.StatusOK, list)
	return nil
}

// WaitEvent is one line of GET /v1/revisions/{revision}/wait: the outcome on a
// proxy, or, as the last one, that the wait is over.
type WaitEvent struct {
	Outcome *xds.ProxyOutcome  `json:"verdict,omitempty"`
	Done    bool               `json:"done,omitempty"`
	Missing []xds.ProxyOutcome `json:"missing,omitempty"` // with Done: the proxies that did not reply in time
}

// wait handles GET /v1/revisions/{revision}/wait?policy=NAME&timeout=30s. It writes the
// outcome on every connected proxy as it comes, one JSON object a line.
func (s *server) wait(w http.ResponseWriter, r *request) error {
	number, err := s.number(r)
	if err != nil {
		return err
	}
	timeout := defaultWait
	if text := r.get("timeout"); text != "" {
		timeout, err = time.ParseDuration(text)
		if err != nil || timeout <= 0 || timeout > MaxWait {
			return badRequest("timeout %s is not a duration above 0 and up to %s", shown(text), MaxWait)
		}
	}
	if _, err := s.revision(r, number); err != nil {
		return err
	}
	if err := setWriteDeadline(w, timeout+10*time.Second); err != nil {
		return err
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	_ = control.Flush()
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	lines := json.NewEncoder(w)
	write := func(e WaitEvent) {
		_ = lines.Encode(e) // the caller has gone if this fails, which ends ctx
		_ = control.Flush()
	}
	missing := s.XDS.Ledger().Follow(ctx, number, func(v xds.ProxyOutcome) { write(WaitEvent{Outcome: &v}) })
	// Where the server stops or the caller has gone, the wait came to no end.
	if r.Context().Err() == nil {
		write(WaitEvent{Done: true, Missing: missing})
	}
	return nil
}

// setWriteDeadline gives a caller that long to receive the answer.
func setWriteDeadline(w http.ResponseWriter, timeout time.Duration) error {
	err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set write deadline: %w", err)
	}
	return nil
}
