package engine

import (
	"errors"
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Operation is one operation on counters.
type Operation struct {
	Name   string   // see Operate
	Rule   string   // clean, stats and top: empty = all rules
	Key    []string // the key's parts as text; not for clean, stats and top
	N      uint32   // units: of hit, peek, inc and set
	Limits []string // those that a request would say: of hit, peek and get; none: the defaults
	Window string   // name or index of one window for inc and set; empty = all
}

// Operate carries out an operation and answers in JSON: hit and peek by a verdict, stats and
// top by a list of rules, all others by a value. That is what the window named by the
// operation has used, else the tightest one; for expires_at it is in nanoseconds since the
// epoch, for reset 1 if the key had a record and 0 if not, for clean how many records it
// freed, and for leased the units that this proxy may still spend. Operations on one key
// say its windows, leased only while the quota service is silent.
func (e *Engine) Operate(op Operation) ([]byte, error) {
	o := decide.Operation(op.Name)
	switch o {
	case "hit", "peek":
	case decide.Get, decide.Inc, decide.Set, decide.Reset, decide.ExpiresAt, decide.Leased:
	case "clean":
		return e.clean(op.Rule)
	case "stats":
		return e.stats(op.Rule)
	case "top":
		return e.topDenied(op.Rule)
	default:
		return nil, errors.New("unknown operation " + strconv.Quote(op.Name))
	}
	v, err := e.verdictOf(op)
	if err != nil {
		return nil, err
	}
	now := e.host.Now()
	switch o {
	case "hit":
		v.Decide(now)
		v.Release()
	case "peek":
		v.CheckEach(now)
	default:
		return operateOnKey(v.Subjects[0], op, o, now)
	}
	return respond.AppendReport(nil, v), nil
}

// operateOnKey has the source of the subject's rule carry out an operation on its key.
func operateOnKey(s *decide.Subject, op Operation, o decide.Operation, now int64) ([]byte, error) {
	if s.Unlimited && (s.Rule.Source == nil || o != decide.Leased) {
		return nil, errors.New("rule " + strconv.Quote(op.Rule) + " counts nothing for this key")
	}
	column, err := columnOf(s.Rule, op.Window)
	if err != nil {
		return nil, err
	}
	answer := result.Result{Value: new(int64)}
	if s.Unlimited { // it leases nothing
		return answer.Append(nil), nil
	}
	*answer.Value, err = s.Operate(o, column, op.N, now)
	if err != nil {
		return nil, err
	}
	if o == decide.Leased {
		answer.Silent = lease.LeaseOf(s).Silent
	}
	if o != decide.Leased || answer.Silent != "" {
		answer.Windows, answer.Held = respond.Windows(s, now), respond.Held(s)
		answer.BlockedNs = s.BlockedNs(now)
	}
	return answer.Append(nil), nil
}

// verdictOf begins a verdict whose only subject is the operation's rule and key.
func (e *Engine) verdictOf(op Operation) (*decide.Verdict, error) {
	if op.Rule == "" {
		return nil, errNoRule("")
	}
	list, err := e.rulesOf(op.Rule)
	if err != nil {
		return nil, err
	}
	r, v := &list[0], e.verdict
	v.Begin()
	to := v.Next()
	if err := r.Policy.ParseKey(&to.Key, op.Key); err != nil {
		return nil, err
	}
	to.Requested, err = r.Policy.ParseLimits(to.Requested, op.Limits)
	if err != nil {
		return nil, err
	}
	v.Add(&r.Rule, decide.Reading{Cost: op.N})
	leases := op.Name == string(decide.Leased)
	switch cluster := r.Policy.Scope == policy.ScopeCluster; {
	case r.Source == nil || leases == cluster:
		return v, nil
	case leases:
		return nil, errors.New("rule " + strconv.Quote(op.Rule) + " has scope proxy: it leases nothing")
	default:
		return nil, errors.New("rule " + strconv.Quote(op.Rule) +
			" has scope cluster: its counters are the quota service's, which sluice counters asks without --proxy")
	}
}

// rulesOf returns the rule of a name, all rules if that is empty.
func (e *Engine) rulesOf(name string) ([]rules.Rule, error) {
	if name == "" {
		return e.rules.List, nil
	}
	for i := range e.rules.List {
		if e.rules.List[i].Policy.Name == name {
			return e.rules.List[i : i+1], nil
		}
	}
	return nil, errNoRule(name)
}

func errNoRule(name string) error { return errors.New("there is no rule " + strconv.Quote(name)) }

// columnOf returns the column in records of the window with that name or index in the policy, state.AllWindows for
// none.
func columnOf(r *decide.Rule, name string) (int, error) {
	if name == "" {
		return state.AllWindows, nil
	}
	if i := r.Policy.LimitNamed(name); i >= 0 {
		return r.Finder.Order[i], nil
	}
	return 0, errors.New("rule " + strconv.Quote(r.Policy.Name) + " has no window " + strconv.Quote(name))
}

// clean frees the records of a rule, or of all, that count nothing.
func (e *Engine) clean(rule string) ([]byte, error) {
	list, err := e.rulesOf(rule)
	if err != nil {
		return nil, err
	}
	sum := int64(0)
	for i := range list {
		for _, table := range list[i].Tables() {
			freed, status := table.Clean(table.Scratch, table.OfRule, e.host.Now())
			if status != state.OK {
				return nil, local.ErrStore
			}
			sum += int64(freed)
		}
	}
	answer := result.Result{Value: &sum}
	return answer.Append(nil), nil
}

// stats are the tables of a rule, or of all, and the metrics of all workers.
func (e *Engine) stats(rule string) ([]byte, error) {
	list, err := e.rulesOf(rule)
	if err != nil {
		return nil, err
	}
	stats, metrics := make([]result.Stats, len(list)), make([][]result.Metric, len(list))
	for i := range list {
		p := list[i].Policy
		s := &stats[i]
		*s = result.Stats{Rule: p.Name, Capacity: uint64(p.Capacity)}
		for j, table := range list[i].Tables() {
			t, status := table.Stats(table.Scratch, table.OfRule, e.host.Now())
			if status != state.OK {
				return nil, local.ErrStore
			}
			if j == 0 {
				s.Keys, s.Slots = t.Keys, t.Slots
			}
			s.Pages, s.Bytes = s.Pages+t.Pages, s.Bytes+t.Bytes
		}
		list[i].Metrics.Each(func(name string, _ uint64) {
			count := e.host.Counted(e.policy.Domain, p.Name, name)
			metrics[i] = append(metrics[i], result.Metric{Name: name, Count: count})
		})
	}
	return result.AppendStats(nil, stats, metrics, e.host.Counted("", "", VMStarts.Metric)), nil
}
