// Package counters carries out operations on the counters of rules of scope cluster. These
// counters are at the quota service.
//
// Its invariant: it names a counter, a key and the limits that hold for it as the
// filter does when it asks. TestOperationsNameTheKeyAsTheFilterDoes, in package simulate, compares
// it with the compiled filter. It must never import the API or the command line.
package counters

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Request is an operation on one key, as an operator asks for it. It goes this way:
//
//	Request
//	  Prepare          finds its rule and key: Prepared
//	  Prepared.Do      makes it an action.Action
//	  Service.Operate  carries that out, and returns its action.Outcome
//	  Prepared.Do      makes that a result.Result
type Request struct {
	Name   string // as the filter has it
	Rule   string
	Key    []string // the key's parts as text
	N      uint32   // units: of hit, peek, inc and set
	Limits []string // that a request would carry: of hit, peek and get
	// Window is the name or index of a window: the only one that inc and set change, and the one whose value they, get
	// and expires_at answer. Empty = they change all, and answer the tightest one's.
	Window string
}

// kind is what operations of a name do and answer.
type kind struct {
	do func(units uint32, window int) action.Action
	// value is the result, from what is found and from the window that is shown. nil = the result is a verdict:
	// allowed or denied, as a request is.
	value func(*action.Outcome, *result.Window) int64
}

// kinds are the operations on one key by name.
var kinds = map[string]kind{
	"hit":        {hit, nil},
	"peek":       {peek, nil},
	"get":        {show, used},
	"expires_at": {show, expiresAt},
	"inc":        {inc, used},
	"set":        {set, used},
	"reset":      {reset, hadUsage},
}

func hit(units uint32, _ int) action.Action { return &action.Take{Units: units} }

func peek(units uint32, _ int) action.Action { return &action.Inspect{Units: units} }

func show(uint32, int) action.Action { return &action.Inspect{} }

func inc(units uint32, window int) action.Action { return &action.Inc{Units: units, Window: window} }

func set(units uint32, window int) action.Action { return &action.Set{Units: units, Window: window} }

func reset(uint32, int) action.Action { return &action.Reset{} }

func (k *kind) isVerdict() bool { return k.value == nil }

func used(_ *action.Outcome, w *result.Window) int64 { return int64(w.Used) }

func expiresAt(found *action.Outcome, w *result.Window) int64 {
	if w.ResetNs == 0 {
		return 0
	}
	return found.NowNs + w.ResetNs
}

func hadUsage(found *action.Outcome, _ *result.Window) int64 {
	if found.HadUsage {
		return 1
	}
	return 0
}

// IsOfCluster reports whether the operation is on one key of a rule of scope cluster.
func IsOfCluster(p *policy.Policy, request Request) bool {
	_, _, err := find(p, &request)
	return err == nil
}

// find finds the kind and the rule of an operation.
func find(p *policy.Policy, request *Request) (k kind, r *policy.Rule, err error) {
	k, known := kinds[request.Name]
	isIt := func(r policy.Rule) bool { return r.Name == request.Rule && r.Mode != policy.ModeOff }
	at := slices.IndexFunc(p.Rules, isIt)
	switch {
	case !known:
		return k, nil, fmt.Errorf("unknown operation %q", request.Name)
	case at < 0:
		return k, nil, fmt.Errorf("there is no rule %q", request.Rule)
	case p.Rules[at].Scope != policy.ScopeCluster:
		return k, nil, fmt.Errorf("rule %q is not of scope cluster: each proxy has its own counters", request.Rule)
	}
	return k, &p.Rules[at], nil
}

// Prepared is an operation that can be carried out, on a key as the quota service knows it.
type Prepared struct {
	request    Request
	kind       kind
	subject    policy.Subject // the rule as it holds for the key
	rule       *policy.Rule
	key        [16]byte
	definition quota.Definition
	domain     string
	columns    []int     // the column of each ruleLimit
	named      ruleLimit // that Request.Window names, or allLimits
}

// ruleLimit is the index of a limit in rule.Limits and in result.Windows, as the policy has them: 100/hour, 10/minute.
type ruleLimit int

const allLimits ruleLimit = -1

// column is the index of its window in definition.Windows and in their Standings, by their period: minute, hour.
type column int

func (p *Prepared) column(of ruleLimit) column { return column(p.columns[of]) }

// actionWindow is the window that the operation changes, as its action names it.
func (p *Prepared) actionWindow() int {
	if p.named == allLimits {
		return action.AllWindows
	}
	return int(p.column(p.named))
}

// Prepare finds the rule and the key of an operation, or says what is wrong with it.
func Prepare(p *policy.Policy, request Request) (*Prepared, error) {
	k, r, err := find(p, &request)
	if err != nil {
		return nil, err
	}
	prepared := &Prepared{request: request, kind: k, rule: r, domain: p.Domain, named: allLimits}
	s := &prepared.subject
	if err := r.ParseKey(&s.Key, request.Key); err != nil {
		return nil, err
	}
	s.Requested, err = r.ParseLimits(nil, request.Limits)
	if err != nil {
		return nil, err
	}
	finder := p.Finder(r)
	finder.Find(s) // sets what of the rule holds for s.Key and s.Requested: limits, override, shadow
	prepared.key = finder.QuotaKey(s)
	prepared.definition, prepared.columns = finder.Definition(s), finder.Order
	switch {
	case s.Unlimited && !k.isVerdict():
		return nil, fmt.Errorf("rule %q counts nothing for this key", r.Name)
	case request.Window != "":
		prepared.named = ruleLimit(r.LimitNamed(request.Window))
		if prepared.named < 0 {
			return nil, fmt.Errorf("rule %q has no window %q", r.Name, request.Window)
		}
	}
	return prepared, nil
}

// Do carries the operation out. The result is as the filter's, with times in nanoseconds.
func (p *Prepared) Do(ctx context.Context, s *quotaservice.Service) (result.Result, error) {
	if p.subject.Unlimited { // nothing is counted, so there is nothing to ask for
		return p.verdict(p.passes(), &action.Outcome{}), nil
	}
	units := p.request.N
	found, err := s.Operate(ctx, p.domain, p.definition, p.key, p.kind.do(units, p.actionWindow()))
	if err != nil {
		return result.Result{}, err
	}
	if !p.kind.isVerdict() {
		return p.value(&found), nil
	}
	if units == 0 && limit.Shut(p.definition.Windows) { // as the filter knows without an ask
		found.Denied, found.WaitNs = true, limit.Never
	}
	return p.verdict(p.decided(&found), &found), nil
}

// value is the result of an operation that decides nothing.
func (p *Prepared) value(found *action.Outcome) result.Result {
	windows := p.windows(found)
	shown := p.named
	if shown == allLimits {
		shown = tightest(windows)
	}
	value := p.kind.value(found, &windows[shown])
	return result.Result{Windows: windows, Value: &value, Held: p.held(found), BlockedNs: p.blockedNs(found)}
}

// verdict is the result of hit and peek, as the filter reports a verdict (respond/report.go there).
func (p *Prepared) verdict(rule result.Rule, found *action.Outcome) result.Result {
	allowed := !found.Denied || p.subject.Shadow
	verdict := result.Result{Allowed: &allowed, Rules: []result.Rule{rule}}
	if !allowed {
		verdict.DeniedBy, verdict.RetryNs = p.rule.Name, &found.WaitNs
	}
	return verdict
}

// passes is the rule for a key that it lets pass, without what is counted.
func (p *Prepared) passes() result.Rule {
	r := result.Rule{
		Rule: p.rule.Name, Key: make([]*string, len(p.request.Key)), Mode: "enforced", Allowed: true,
		Windows: []result.Window{},
	}
	for i := range p.request.Key {
		r.Key[i] = &p.request.Key[i]
	}
	if p.subject.Override >= 0 {
		r.Override = p.rule.Overrides[p.subject.Override].Name
	}
	if p.subject.Shadow {
		r.Mode = "shadow"
	}
	return r
}

// decided is what the rule decides for the key.
func (p *Prepared) decided(found *action.Outcome) result.Rule {
	r := p.passes()
	r.Allowed, r.Windows = !found.Denied, p.windows(found)
	r.Held, r.BlockedNs = p.held(found), p.blockedNs(found)
	if len(r.Windows) > 0 {
		r.Remaining = r.Windows[tightest(r.Windows)].Remaining
	}
	switch {
	case found.HeldBack:
		r.Reason = result.ReasonHeld
	case found.Denied && found.Blocked:
		r.Reason = result.ReasonBlocked
	case found.Denied:
		r.Reason = result.ReasonLimit
	}
	return r
}

// windows are the rule's limits in policy order.
func (p *Prepared) windows(found *action.Outcome) []result.Window {
	all := []result.Window{}
	for i := range p.columns {
		all = append(all, p.window(ruleLimit(i), found))
	}
	return all
}

// window is how one limit of the rule stands.
func (p *Prepared) window(l ruleLimit, found *action.Outcome) result.Window {
	at := p.column(l)
	w, st := &p.definition.Windows[at], found.Standings[at]
	shown := result.Window{
		Name: p.rule.Limits[l].Name, Unlimited: w.Unlimited, PerNs: w.LengthNs(found.NowNs), Months: w.Months(),
		Used: st.Used, ResetNs: st.ResetNs,
	}
	if w.Unlimited {
		return shown
	}
	left := w.Left(st.Used)
	if held := p.held(found); held != nil && w.Algorithm != limit.Concurrency {
		left -= min(left, *held)
	}
	shown.SetLimit(w, left)
	shown.SetLimitFrom(p.rule, int(l), &p.subject)
	return shown
}

// held is how many units of the key are held; nil = the rule holds none. A definition has its limit.Concurrency last,
// and what is held stands for that.
func (p *Prepared) held(found *action.Outcome) *uint32 {
	last := len(p.definition.Windows) - 1
	if last < 0 || p.definition.Windows[last].Algorithm != limit.Concurrency {
		return nil
	}
	return &found.Standings[last].Used
}

// blockedNs is what is left of the key's block, 0 if it is not blocked.
func (p *Prepared) blockedNs(found *action.Outcome) int64 {
	if block := p.definition.Block(); block >= 0 {
		return found.Standings[block].ResetNs
	}
	return 0
}

// tightest is the index of the window with least units left; of equal ones the first, as in the filter.
func tightest(windows []result.Window) ruleLimit {
	best := 0
	for i, w := range windows {
		if w.Remaining != nil && (windows[best].Remaining == nil || *w.Remaining < *windows[best].Remaining) {
			best = i
		}
	}
	return ruleLimit(best)
}
