package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

// Quota is the quota service through which operations reach the counters of rules of
// scope cluster.
type Quota struct {
	Service *quotaservice.Service // nil = there is none
	// Private says that no other service has its store: it knows nothing of proxies
	// that do not ask it.
	Private bool
	// Apart says that other control planes may be on the store of policies, each of which
	// has a private service like this one.
	Apart bool
}

// countedApart is what apply and status say where rules of scope cluster count apart.
const countedApart = "this serve keeps quotas in memory, " +
	"so each serve on the store lets the whole limit of a rule of scope cluster through: " +
	"start all of them with the same --quota-store redis://HOST:PORT"

// countsApart says whether a revision has rules of scope cluster that each control plane on
// the store counts for itself.
func (s *server) countsApart(ctx context.Context, number uint64) (bool, error) {
	if !s.Quota.Apart || number == 0 {
		return false, nil
	}
	r, err := s.Store.Get(ctx, number)
	if errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrNotFound) {
		return false, nil // status tells of that by itself
	}
	type rule struct{ Scope policy.Scope }
	of := struct{ Rules []rule }{}
	if err == nil {
		err = json.Unmarshal(r.JSON, &of)
	}
	return slices.ContainsFunc(of.Rules, func(r rule) bool { return r.Scope == policy.ScopeCluster }), err
}

// ofCluster returns the operation if it is on a key of a rule of scope cluster in the
// current revision, else nil.
func (s *server) ofCluster(ctx context.Context, a asked) (*counters.Prepared, error) {
	if !a.op.Keyed {
		return nil, nil
	}
	list, err := s.standing(ctx, a.policy)
	if err != nil {
		return nil, err
	}
	free, err := s.judging.take(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.newest(ctx, list)
	free()
	if err != nil || c.policy == nil { // the proxies say what they make of the rule
		return nil, err
	}
	o := counters.Request{
		Name: a.op.Wire, Rule: a.query.Get("rule"), Key: a.query["key"], N: 1,
		Limits: a.query["limit"], Window: a.query.Get("window"),
	}
	if !counters.IsOfCluster(c.policy, o) {
		return nil, nil
	}
	if a.query.Has("n") {
		n, _ := strconv.ParseUint(a.query.Get("n"), 10, 32) // Query has checked it
		o.N = uint32(n)
	}
	prepared, err := counters.Prepare(c.policy, o)
	if err != nil {
		return nil, badRequest("%w", err)
	}
	return prepared, s.Quota.check()
}

// Notes of answers about rules of scope cluster.
const (
	noteLeased  = "proxies may spend what they hold for up to 10s more: the limit is exact after that"
	noteUnknown = "what proxies hold is not known: serve has no --manage-token-file"
)

// clusterCounters has the quota service do the operation, and says what the proxies hold beside its
// answer, if they can be asked.
func (s *server) clusterCounters(w http.ResponseWriter, r *request, a asked, prepared *counters.Prepared) error {
	ctx, note := r.Context(), noteUnknown
	leased := func() []manage.Row { return []manage.Row{} }
	if s.Fleet != nil {
		call, targets, err := s.call(ctx, a.policy, a.timeout) // now: if it cannot be, nothing is done
		if err != nil {
			return err
		}
		defer call.End()
		note = ""
		leased = func() []manage.Row {
			of := url.Values{"rule": a.query["rule"], "key": a.query["key"]}
			return call.Counters(ctx, targets, manage.Leased, of)
		}
	}
	setOutcome, err := s.record(ctx, a)
	if err != nil {
		return err
	}
	done, err := s.Quota.do(ctx, a, prepared, setOutcome)
	if err != nil {
		return err
	}
	begin(w)
	if a.op.Name == "set" || a.op.Name == "reset" {
		note = noteLeased
	}
	c := NewCounters(manage.Leased, leased())
	c.Op, c.Note = a.op.Wire, note
	c.Quota = &done
	_ = json.NewEncoder(w).Encode(c) // the caller has gone if this fails
	return nil
}

// check says why the service does not have the proxies' counters.
func (q *Quota) check() error {
	switch {
	case q.Service == nil:
		return refusal(http.StatusNotImplemented,
			"serve has no quota service: start it with --quota-store and the store of the one that proxies ask")
	case q.Private && !q.Service.WasAsked():
		return refusal(http.StatusNotImplemented,
			"no proxy has asked the quota service of this serve: if they ask another one, start serve with its --quota-store")
	}
	return nil
}

// starting says for how much longer the quota store is starting, if some policy has rules
// that wait for that.
func (s *server) starting(ctx context.Context) error {
	if s.Quota.Service == nil {
		return nil
	}
	starting := s.Quota.Service.Starting()
	if starting == nil {
		return nil
	}
	free, err := s.judging.take(ctx)
	if err != nil {
		return err
	}
	defer free()
	for _, name := range s.XDS.Ledger().Policies() {
		list, err := s.standing(ctx, name)
		if err != nil {
			return err
		}
		c, err := s.newest(ctx, list)
		if err != nil {
			return err
		}
		waits := func(r policy.Rule) bool {
			return r.Scope == policy.ScopeCluster && r.Holds() && r.Mode != policy.ModeOff
		}
		if c.policy != nil && slices.ContainsFunc(c.policy.Rules, waits) {
			return starting
		}
	}
	return nil
}

// do does an operation, and sets its outcome. It returns the result with times in milliseconds.
func (q *Quota) do(
	ctx context.Context, a asked, prepared *counters.Prepared, setOutcome func(string),
) (rounded counted.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	done, err := prepared.Do(ctx, q.Service)
	if err == nil {
		var ok bool
		rounded, ok = manage.ReadAnswer(a.op, done.Append(nil))
		if !ok {
			err = errors.New("the quota service gave no answer")
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // it goes on
		setOutcome("not known whether it was done: " + err.Error())
		return rounded, refusal(http.StatusGatewayTimeout, "%w", err)
	case err != nil:
		setOutcome("failed: " + err.Error())
		return rounded, later("1", err)
	}
	setOutcome("done by the quota service")
	return rounded, nil
}
