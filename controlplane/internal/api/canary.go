package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const defaultMaxDenied = 2

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
		number, err := s.rollouts.Step(r.Context(), r.policy(), store.Step{State: state, Audit: entryOf(r.Context(), action)})
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
