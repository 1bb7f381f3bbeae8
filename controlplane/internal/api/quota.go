package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota/counters"
	counted "github.com/sluice-ratelimit/sluice/shared/answer"
)

// Quota is the quota service through which operations reach the counters of rules of
// scope cluster.
type Quota struct {
	Service *quota.Service // nil = there is none
	// Private says that no other service has its store: it knows nothing of proxies
	// that do not ask it.
	Private bool
}

// ofCluster returns the operation if it is on a key of a rule of scope cluster in the
// current revision, else nil.
func (s *server) ofCluster(ctx context.Context, policy string, op manage.Operation, query url.Values) (*counters.Prepared, error) {
	if !op.Keyed {
		return nil, nil
	}
	list, err := s.standing(ctx, policy)
	if err != nil {
		return nil, err
	}
	free, err := s.judging.take(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.current(ctx, list)
	free()
	if err != nil || c.policy == nil { // the proxies say what they make of the rule
		return nil, err
	}
	o := counters.Operation{Name: op.Wire, Rule: query.Get("rule"), Key: query["key"], N: 1, Limits: query["limit"], Window: query.Get("window")}
	if !counters.IsOfCluster(c.policy, o) {
		return nil, nil
	}
	if query.Has("n") {
		n, _ := strconv.ParseUint(query.Get("n"), 10, 32) // Query has checked it
		o.N = uint32(n)
	}
	prepared, err := counters.Prepare(c.policy, o)
	return prepared, badRequest(err)
}

// Notes of answers about rules of scope cluster.
const (
	noteLeased  = "proxies may spend what they hold for up to 10s more: the limit is exact after that"
	noteUnknown = "what proxies hold is not known: serve has no --manage-token-file"
)

// clusterCounters has the quota service do the operation, and asks the proxies what
// they hold beside it.
func (s *server) clusterCounters(
	w http.ResponseWriter, r *http.Request, policy string, op manage.Operation, prepared *counters.Prepared, query url.Values, timeout time.Duration,
) error {
	if err := s.quota.check(); err != nil {
		return err
	}
	var call *manage.Call
	var targets []manage.Target
	if s.fleet != nil {
		var err error
		if call, targets, err = s.call(r.Context(), policy, timeout); err != nil {
			return err
		}
		defer call.End()
	}
	settle := func(string) {}
	if op.Changes {
		var err error
		if settle, err = s.record(r.Context(), policy, op, query); err != nil {
			return err
		}
	}
	done, err := s.quota.do(r.Context(), op, prepared, timeout)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) { // it goes on
		settle("not known whether it was done: " + err.Error())
		return &failure{code: http.StatusGatewayTimeout, err: err}
	}
	if err != nil {
		settle("failed: " + err.Error())
		return &failure{code: http.StatusServiceUnavailable, err: err, retryAfter: "1"}
	}
	settle("done by the quota service")
	begin(w)
	c := NewCounters(manage.Leased, []manage.Row{})
	if call != nil {
		c = NewCounters(manage.Leased, call.Counters(r.Context(), targets, manage.Leased, url.Values{"rule": query["rule"], "key": query["key"]}))
	} else {
		c.Note = noteUnknown
	}
	if op.Name == "set" || op.Name == "reset" {
		c.Note = noteLeased
	}
	c.Op, c.Quota = op.Wire, &done
	_ = json.NewEncoder(w).Encode(c) // the caller has gone if this fails
	return nil
}

// check says why the service does not have the proxies' counters.
func (q *Quota) check() error {
	var err error
	switch {
	case q.Service == nil:
		err = errors.New("serve has no quota service: start it with --quota-store and the store of the one that proxies ask")
	case q.Private && !q.Service.WasAsked():
		err = errors.New("no proxy has asked the quota service of this serve: if they ask another one, start serve with its --quota-store")
	default:
		return nil
	}
	return &failure{code: http.StatusNotImplemented, err: err}
}

// do returns the answer with times in milliseconds.
func (q *Quota) do(ctx context.Context, op manage.Operation, prepared *counters.Prepared, timeout time.Duration) (counted.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	done, err := prepared.Do(ctx, q.Service)
	if err != nil {
		return counted.Answer{}, err
	}
	rounded, ok := manage.ReadAnswer(op, done.Append(nil))
	if !ok {
		return counted.Answer{}, errors.New("the quota service gave no answer")
	}
	return rounded, nil
}
