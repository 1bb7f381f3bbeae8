package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/canary"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	defaultMaxDenied = 2
	// lookEvery is how often the proxies' counts are read, and how long one may take.
	lookEvery = 2 * time.Second
	// maxRead is how many proxies are read of a canary, and of the others.
	maxRead = 50
)

// CanaryStatus is how a canary stands, and what this serve has seen of it.
type CanaryStatus struct {
	Revision uint64 `json:"revision"`
	xds.Canary
	Seen []canary.Rule `json:"seen"`
	Says string        `json:"says"` // what it waits for, in words
}

// readPercent reads a share such as 10%.
func readPercent(text string) (float64, error) {
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !strings.HasSuffix(text, "%") || !(n > 0 && n <= 100) {
		return 0, fmt.Errorf("%s is not a share above 0%% and up to 100%%, such as 10%%", shown(text))
	}
	return n, nil
}

// readRollout reads canary=10%&promote_after=5m&max_denied=2%&abort_on_denied=true. It is nil
// without canary.
func readRollout(q query) (r *store.Rollout, err error) {
	switch given := q.has("canary"); {
	case !given && q.get("promote_after")+q.get("max_denied")+q.get("abort_on_denied") != "":
		return nil, badRequest("promote_after, max_denied and abort_on_denied go with canary")
	case !given:
		return nil, nil //nolint:nilnil // all proxies at once, which is no error
	}
	r = &store.Rollout{MaxDenied: defaultMaxDenied, State: store.Canary}
	r.Percent, err = readPercent(q.get("canary"))
	if err != nil {
		return nil, badRequest("canary %w", err)
	}
	if text := q.get("promote_after"); text != "" {
		r.PromoteAfter, err = time.ParseDuration(text)
		if err != nil || r.PromoteAfter < time.Second {
			return nil, badRequest("promote_after %s is not a duration from 1s, such as 5m", shown(text))
		}
	}
	if text := q.get("max_denied"); text != "" {
		r.MaxDenied, err = readPercent(text)
		if err != nil {
			return nil, badRequest("max_denied %w", err)
		}
	}
	if text := q.get("abort_on_denied"); text != "" {
		r.AbortDenied, err = strconv.ParseBool(text)
		if err != nil {
			return nil, badRequest("abort_on_denied %s is neither true nor false", shown(text))
		}
	}
	return r, nil
}

// beginCanary fills in which proxies a canary of a draft reaches, and refuses one that could
// not be aborted.
func (s *server) beginCanary(ctx context.Context, d *store.Draft, before newest) error {
	switch {
	case s.XDS.Ledger().ForNewProxy(d.Policy) == 0:
		return refusal(http.StatusConflict,
			"policy %s has no revision yet that the other proxies could keep: apply the first one without a canary", d.Policy)
	case !before.revision.Proxies.Equal(d.Proxies):
		return refusal(http.StatusConflict,
			"a canary cannot change which proxies policy %s is for: do that without one", d.Policy)
	}
	r := *d.Rollout
	r.Except, r.Who = s.XDS.Ledger().Choose(d.Policy, r.Percent), access.FromContext(ctx).Name
	d.Rollout = &r
	return nil
}

// blind says why a canary that is to end by itself cannot, if what it denies will not be known.
func (s *server) blind(r *store.Rollout, p *policy.Policy) []string {
	const text = "what the canary denies is not known, so it will be neither promoted nor aborted by itself: "
	switch {
	case r == nil || r.PromoteAfter == 0 && !r.AbortDenied:
		return nil
	case s.Fleet == nil:
		return []string{text + noToken}
	case manageOf(p).Path == "":
		return []string{text + "the policy has no manage: add it, and give the proxies a management listener"}
	}
	return nil
}

// noCanary refuses a change of a policy while a canary of it lasts.
func (s *server) noCanary(policy string) error {
	number, _ := s.XDS.Ledger().Canary(policy)
	if number == 0 {
		return nil
	}
	of := ""
	if policy != store.DefaultPolicy {
		of = " --policy " + policy
	}
	return refusal(http.StatusConflict,
		"revision %d of policy %s is a canary: end that first, by sluice promote%s or sluice abort%s", number, policy, of, of)
}

// end handles POST /v1/promote?policy=NAME and POST /v1/abort?policy=NAME. It answers with
// the revision that all proxies of the policy get now.
func (s *server) end(action string, state store.RolloutState) handler {
	return func(w http.ResponseWriter, r *request) error {
		number, err := s.step(r.Context(), r.policy(), store.Step{State: state, Audit: entryOf(r.Context(), action)}, false)
		if err != nil {
			return err
		}
		if state == store.Aborted {
			number = s.XDS.Ledger().ForNewProxy(r.policy())
		}
		now, err := s.Store.Get(r.Context(), number)
		if err != nil {
			return err
		}
		answer(w, http.StatusOK, Applied{Summary: now.Summary, Proxies: s.XDS.Ledger().Connected(now.Policy)})
		return nil
	}
}

// step changes how the canary of a policy stands: that of the step's revision, 0 for any.
// With leads it does so only while this serve leads.
func (s *server) step(ctx context.Context, policy string, step store.Step, leads bool) (uint64, error) {
	for {
		_, last := s.XDS.Ledger().Takers()
		number, _ := s.XDS.Ledger().Canary(policy)
		if leads && !s.Store.Leads() {
			return 0, nil
		}
		if number == 0 || step.Revision != 0 && step.Revision != number {
			return 0, refusal(http.StatusConflict, "there is no canary of policy %s", policy)
		}
		step.Revision = number
		_, err := s.Store.Append(ctx, store.Change{Last: last, Steps: []store.Step{step}, Leads: leads})
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return 0, err
		}
		failed := s.XDS.Refresh(ctx)
		switch {
		case err == nil:
			if failed != nil { // it goes on trying
				s.Log.Error("follow the store", "error", failed)
			}
			s.Log.Info("canary "+string(step.State), "revision", number, "policy", policy,
				"who", access.Who(step.Audit.Who), "why", step.Why)
			return number, nil
		case failed != nil || leads: // it is judged anew then
			return 0, failed
		}
	}
}

// watched is what this serve has seen of canaries, by policy.
type watched struct {
	mu sync.Mutex
	of map[string]*watching
}

type watching struct {
	canary.Sight
	revision uint64
	since    time.Time
	alone    bool   // no other proxy tells what it denies
	waits    string // why it is not promoted yet
}

// watch watches all canaries until ctx ends.
func (s *server) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		for _, policy := range s.XDS.Ledger().Policies() {
			if err := s.watchOne(ctx, policy, time.Now()); err != nil {
				s.Log.Error("watch canary", "policy", policy, "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// watchOne looks at the canary of a policy, if there is one, and takes the step that is due.
func (s *server) watchOne(ctx context.Context, policy string, now time.Time) error {
	number, _ := s.XDS.Ledger().Canary(policy)
	if number == 0 {
		return nil
	}
	rows, err := s.look(ctx, policy)
	// As it stands after that: a proxy may have refused it meanwhile.
	again, c := s.XDS.Ledger().Canary(policy)
	if again != number {
		return nil
	}
	s.watched.mu.Lock()
	w := s.watched.of[policy]
	if w == nil || w.revision != number {
		w = &watching{Sight: canary.NewSight(), revision: number, since: now}
		s.watched.of[policy] = w
	}
	w.take(rows, err, &c, now)
	state, why := w.next(&c, now)
	s.watched.mu.Unlock()
	if state == c.State {
		return nil
	}
	actions := map[store.RolloutState]string{store.Promoted: "promote", store.Stalled: "stall", store.Aborted: "abort"}
	_, err = s.step(ctx, policy, store.Step{
		Revision: number, State: state, Why: why,
		Audit: store.Entry{Who: "sluice serve", Action: actions[state], Text: why},
	}, true)
	return err
}

// look reads the counts of the first proxies of the canary, and of the others.
func (s *server) look(ctx context.Context, policy string) ([]manage.Row, error) {
	call, targets, err := s.call(ctx, policy, lookEvery)
	if err != nil {
		return nil, err
	}
	defer call.End()
	n := map[uint64]int{} // by revision
	some := targets[:0]
	for _, t := range targets {
		n[t.Revision]++
		if n[t.Revision] <= maxRead {
			some = append(some, t)
		}
	}
	return call.Counters(ctx, some, manage.Stats, nil), nil
}

// take adds what proxies have said.
func (w *watching) take(rows []manage.Row, err error, c *xds.Canary, now time.Time) {
	others := 0
	silent := map[bool]string{false: "there is no other proxy to compare with"} // by whether it is in the canary
	for _, r := range rows {
		in := r.Revision == w.revision
		switch {
		case r.Error != "":
			silent[in] = r.Proxy + " does not tell what it denies: " + r.Error
			if r.Hint != "" {
				silent[in] += "; " + r.Hint
			}
			continue
		case in && r.VMStarts == 0:
			silent[in] = r.Proxy + " does not tell whether its filter has crashed: that is too old"
		case !in:
			others++
		}
		n := canary.Sample{Revision: r.Revision, InCanary: in, VMStarts: r.VMStarts, Rules: map[string]canary.Count{}}
		for _, rule := range r.Stats {
			allowed, denied := rule.Metrics["allowed"], rule.Metrics["denied"]
			n.Rules[rule.Rule] = canary.Count{Requests: allowed + denied, Denied: denied}
		}
		w.Add(r.Proxy+" "+r.URL, now, n)
	}
	w.alone, w.waits = others == 0, silent[true]
	switch {
	case err != nil:
		w.waits = err.Error()
	case c.Connected == 0:
		w.waits = "no proxy of it is connected"
	case c.Runs < c.Connected:
		w.waits = fmt.Sprintf("%d of its %d proxies run it", c.Runs, c.Connected)
	case len(c.Gone) > 0:
		w.waits = c.Gone[0] + " ran it and is gone"
	case w.waits == "" && w.alone:
		w.waits = silent[false]
	}
}

// next says how the canary is to stand, and why.
func (w *watching) next(c *xds.Canary, now time.Time) (store.RolloutState, string) {
	bad, missing := w.Judge(c.MaxDenied)
	if w.alone {
		bad = ""
	}
	proxy, _, ended := strings.Cut(w.Ended, " ")
	switch why := cmp.Or(w.waits, missing); {
	case bad != "" && c.AbortDenied:
		return store.Aborted, bad
	case c.State == store.Stalled:
		return store.Stalled, c.Why
	case len(c.Refused) > 0:
		return store.Stalled, "refused by " + strings.Join(c.Refused, ", ")
	case c.Nacked:
		return store.Stalled, "refused by a proxy that has accepted it since, or is gone"
	case ended:
		return store.Stalled, "the filter of " + proxy + " has crashed, or the proxy was restarted"
	case bad != "":
		return store.Stalled, bad
	case c.PromoteAfter == 0 || now.Before(w.since.Add(c.PromoteAfter)) || why != "":
		return store.Canary, why
	}
	return store.Promoted, "by itself after " + c.PromoteAfter.String()
}

// says is what the canary waits for, in words.
func (w *watching) says(c *xds.Canary, now time.Time) string {
	state, why := w.next(c, now)
	at := w.since.Add(c.PromoteAfter)
	when := "will be promoted at " + at.UTC().Format(time.TimeOnly+"Z")
	switch {
	case state == store.Stalled:
		return "stalled, waits for promote or abort: " + why
	case state == store.Aborted:
		return "will be aborted: " + why
	case state == store.Promoted, c.PromoteAfter > 0 && why == "":
		return when + " unless it stalls"
	case c.PromoteAfter > 0 && now.Before(at):
		return when + " or later, waits: " + why
	case c.PromoteAfter > 0:
		return "waits: " + why
	case why != "":
		return "waits for promote or abort; " + why
	}
	return "waits for promote or abort"
}

// canaryStatus is how the canary of a policy stands, nil if there is none.
func (s *server) canaryStatus(policy string, now time.Time) *CanaryStatus {
	number, c := s.XDS.Ledger().Canary(policy)
	if number == 0 {
		return nil
	}
	s.watched.mu.Lock()
	defer s.watched.mu.Unlock()
	w := s.watched.of[policy]
	if w == nil || w.revision != number {
		w = &watching{since: now}
	}
	return &CanaryStatus{Revision: number, Canary: c, Seen: w.Rules(), Says: w.says(&c, now)}
}
