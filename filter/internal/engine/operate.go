package engine

import (
	"errors"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Operation is one operation on counters.
type Operation struct {
	Name   string   // one of Operations
	Rule   string   // clean, stats and top: empty = all rules
	Key    []string // the key's parts as text; not for clean, stats and top
	N      uint32   // units: of hit, peek, inc and set
	Window string   // name or index of one window for inc and set; empty = all
}

// Operations are the names of all operations.
var Operations = []string{"hit", "peek", "get", "inc", "set", "reset", "expires_at", "leased", "clean", "stats", "top"}

// Result is what an operation found or did.
type Result struct {
	Verdict *decide.Verdict // of hit and peek
	Rules   []RuleStats     // of stats
	Denials []RuleDenials   // of top
	Subject *decide.Subject // of the operations on one key: its windows; of leased, while the quota service is silent
	Now     int64           // when Subject was read
	// Value is what the window named by the operation has used, else the tightest
	// one; for expires_at it is in nanoseconds since the epoch, for reset 1 if the
	// key had a record and 0 if not, for clean how many records it freed, and for
	// leased the units that this proxy may still spend.
	Value int64
}

// RuleStats are one rule's table and metrics.
type RuleStats struct {
	Rule *policy.Rule
	state.Stats
	Metrics []Count // of all workers
}

// Count is one metric.
type Count struct {
	Name string
	N    uint64
}

// Operate carries out an operation. The result is valid until the next call.
func (e *Engine) Operate(op Operation) (Result, error) {
	if !slices.Contains(Operations, op.Name) {
		return Result{}, errors.New("unknown operation " + strconv.Quote(op.Name))
	}
	switch op.Name {
	case "clean", "stats":
		return e.operateOnRules(op)
	case "top":
		return e.topDenied(op)
	}
	s, err := e.named(op)
	if err != nil {
		return Result{}, err
	}
	v, now, c := e.verdict, e.host.Now(), s.Rule.Source
	if c != nil {
		if err := c.Refusal(op.Name); err != nil {
			return Result{}, err
		}
	}
	switch {
	case op.Name == "peek":
		v.Peek(now)
		return Result{Verdict: v}, nil
	case op.Name == "hit":
		v.Decide(now)
		return Result{Verdict: v}, nil
	case s.Unlimited && (c == nil || op.Name != "leased"):
		return Result{}, errors.New("rule " + strconv.Quote(op.Rule) + " counts nothing for this key")
	}
	window, err := window(s.Rule, op.Window)
	if err != nil {
		return Result{}, err
	}
	value, err := c.Operate(s, op.Name, window, op.N, now)
	result := Result{Now: now, Value: value}
	if held, _ := lease.Leased(s); op.Name != "leased" || held.Silent {
		result.Subject = s
	}
	return result, err
}

// named begins a verdict on the operation's rule and key.
func (e *Engine) named(op Operation) (*decide.Subject, error) {
	list, err := e.rulesOf(op.Rule)
	if op.Rule == "" {
		err = errNoRule("")
	}
	if err != nil {
		return nil, err
	}
	r := &list[0]
	e.verdict.Begin()
	s := e.verdict.Next()
	if err := r.Policy.ParseKey(&s.Key, op.Key); err != nil {
		return nil, err
	}
	s.Cost, s.CostUnreadable = op.N, false
	s.Begin(&r.Rule)
	e.verdict.Add()
	return s, nil
}

// rulesOf returns the rule of a name, all rules where that is empty.
func (e *Engine) rulesOf(name string) ([]rules.Rule, error) {
	if name == "" {
		return e.rules, nil
	}
	for i := range e.rules {
		if e.rules[i].Policy.Name == name {
			return e.rules[i : i+1], nil
		}
	}
	return nil, errNoRule(name)
}

func errNoRule(name string) error { return errors.New("there is no rule " + strconv.Quote(name)) }

// window returns the index in r.Subjects.Windows of the window with that name or index
// in the policy, state.AllWindows for none.
func window(r *decide.Rule, name string) (int, error) {
	if name == "" {
		return state.AllWindows, nil
	}
	if i := r.Policy.LimitNamed(name); i >= 0 {
		return r.Subjects.Order[i], nil
	}
	return 0, errors.New("rule " + strconv.Quote(r.Policy.Name) + " has no window " + strconv.Quote(name))
}

// operateOnRules carries out clean or stats on the rule or all rules.
func (e *Engine) operateOnRules(op Operation) (Result, error) {
	list, err := e.rulesOf(op.Rule)
	if err != nil {
		return Result{}, err
	}
	now, result := e.host.Now(), Result{}
	if op.Name == "stats" {
		result.Rules = []RuleStats{}
	}
	for i := range list {
		r, freed, status := &list[i], uint64(0), state.OK
		stats := RuleStats{Rule: r.Policy}
		switch {
		case r.Source == nil:
		case op.Name == "clean":
			freed, status = r.Source.Clean(now)
		default:
			stats.Stats, status = r.Source.Stats(now)
		}
		if status != state.OK {
			return Result{}, local.ErrStore
		}
		if result.Value += int64(freed); op.Name == "clean" {
			continue
		}
		r.Each(func(name string, _ uint64) {
			stats.Metrics = append(stats.Metrics, Count{name, e.host.Counted(e.policy.Domain, r.Policy.Name, name)})
		})
		result.Rules = append(result.Rules, stats)
	}
	return result, nil
}
