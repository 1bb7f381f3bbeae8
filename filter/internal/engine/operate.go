package engine

import (
	"errors"
	"slices"
	"strconv"

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

// ErrStore says that a call into the proxy failed, or that other workers kept
// writing.
var ErrStore = errors.New("the counters could not be read or written")

// Result is what an operation found or did.
type Result struct {
	Verdict *Verdict      // of hit and peek
	Rules   []RuleStats   // of stats
	Denials []RuleDenials // of top
	Attempt *Attempt      // of the operations on one key: its windows
	Now     int64         // when Attempt was read
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
	a, err := e.subject(op)
	if err != nil {
		return Result{}, err
	}
	now := e.host.Now()
	switch isLeased := op.Name == "leased"; {
	case a.rule.leases == nil && isLeased:
		return Result{}, errors.New("rule " + strconv.Quote(op.Rule) + " has scope proxy: it leases nothing")
	case isLeased:
		units, err := a.rule.leases.left(a, now)
		return Result{Value: int64(units)}, err
	case a.rule.leases != nil:
		return Result{}, errors.New("rule " + strconv.Quote(op.Rule) +
			" has scope cluster: its counters are the quota service's, which sluice counters asks without --proxy")
	}
	e.verdict.begin()
	switch op.Name {
	case "peek":
		return Result{Verdict: e.peek(e.attempts[:1], now)}, nil
	case "hit":
		e.decide(e.attempts[:1], now)
		return Result{Verdict: &e.verdict}, nil
	}
	if a.Unlimited {
		return Result{}, errors.New("rule " + strconv.Quote(op.Rule) + " counts nothing for this key")
	}
	value, err := a.operate(op, now)
	return Result{Attempt: a, Now: now, Value: value}, err
}

// subject begins an attempt of the operation's rule and key.
func (e *Engine) subject(op Operation) (*Attempt, error) {
	r := e.rule(op.Rule)
	if r == nil {
		return nil, errors.New("there is no rule " + strconv.Quote(op.Rule))
	}
	a := e.attempt(0)
	a.start(r)
	a.Cost = op.N
	if err := r.policy.ParseKey(&a.Key, op.Key); err != nil {
		return nil, err
	}
	a.subject()
	return a, nil
}

func (e *Engine) rule(name string) *rule {
	for i := range e.rules {
		if e.rules[i].policy.Name == name {
			return &e.rules[i]
		}
	}
	return nil
}

// operate reads the key's usage and changes it, until no other worker writes in between.
func (a *Attempt) operate(op Operation, now int64) (value int64, err error) {
	window, err := a.rule.window(op.Window)
	if err != nil {
		return 0, err
	}
	table := a.rule.table
	for range maxRetries {
		if table.Read(&a.entry, a.limits, now) != state.OK {
			break
		}
		a.Known = true
		status, had := state.OK, false
		switch op.Name {
		case "inc":
			status = table.Inc(&a.entry, window, op.N, a.evicts())
		case "set":
			status = table.Set(&a.entry, window, op.N, a.evicts())
		case "reset":
			had, status = table.Reset(&a.entry, a.evicts())
		}
		switch {
		case status == state.Full:
			return 0, errors.New("the page of this key is full, and on_full does not evict")
		case status == state.Mismatch:
			continue
		case status != state.OK:
			return 0, ErrStore
		case op.Name == "reset":
			a.Known = table.Read(&a.entry, a.limits, now) == state.OK // as reset left it
			return one(had), nil
		case op.Name == "inc" || op.Name == "set":
			a.stored()
		case op.Name == "expires_at":
			return a.expiresAt(), nil
		}
		if window == state.AllWindows {
			window = a.rule.subjects.Order[a.Tightest()]
		}
		return int64(a.limits.Windows[window].Count(table.Usage(&a.entry, window), a.entry.Now)), nil
	}
	return 0, ErrStore
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// expiresAt is when the tightest window starts anew; 0 for a window per key that
// has not begun.
func (a *Attempt) expiresAt() int64 {
	w, u := a.Window(a.Tightest())
	if at := w.Reset(u, a.entry.Now); at > a.entry.Now {
		return at
	}
	return 0
}

// window returns the index in r.subjects.Windows of the window with that name or index
// in the policy, state.AllWindows for none.
func (r *rule) window(name string) (int, error) {
	if name == "" {
		return state.AllWindows, nil
	}
	if i := r.policy.LimitNamed(name); i >= 0 {
		return r.subjects.Order[i], nil
	}
	return 0, errors.New("rule " + strconv.Quote(r.policy.Name) + " has no window " + strconv.Quote(name))
}

// operateOnRules carries out clean or stats on the rule or all rules.
func (e *Engine) operateOnRules(op Operation) (Result, error) {
	if op.Rule != "" && e.rule(op.Rule) == nil {
		return Result{}, errors.New("there is no rule " + strconv.Quote(op.Rule))
	}
	now, result := e.host.Now(), Result{}
	if op.Name == "stats" {
		result.Rules = []RuleStats{}
	}
	for i := range e.rules {
		r := &e.rules[i]
		if op.Rule != "" && op.Rule != r.policy.Name {
			continue
		}
		if op.Name == "clean" {
			freed, err := e.clean(r, now)
			if err != nil {
				return Result{}, err
			}
			result.Value += int64(freed)
			continue
		}
		stats, err := e.stats(r, now)
		if err != nil {
			return Result{}, err
		}
		result.Rules = append(result.Rules, stats)
	}
	return result, nil
}

// clean frees what counts nothing: of a rule of scope cluster, too, where a lease
// holds nothing.
func (e *Engine) clean(r *rule, now int64) (freed uint64, err error) {
	status := state.OK
	if r.table != nil {
		freed, status = r.table.Clean(&e.attempt(0).entry, r.subjects.Windows, now)
	}
	if r.leases != nil && status == state.OK {
		var leased uint64
		leased, status = r.leases.table.Clean(&e.settling, now, e.host.Monotonic())
		freed += leased
	}
	if status != state.OK {
		return 0, ErrStore
	}
	return freed, nil
}

// stats describes the rule's table. The keys of a rule of scope cluster are those of
// its leases; those that count here while the service is silent are among them.
func (e *Engine) stats(r *rule, now int64) (RuleStats, error) {
	s, status := RuleStats{Rule: r.policy}, state.OK
	if r.table != nil {
		s.Stats, status = r.table.Stats(&e.attempt(0).entry, r.subjects.Windows, now)
	}
	if r.leases != nil && status == state.OK {
		local := s.Stats
		s.Stats, status = r.leases.table.Stats(&e.settling, now, e.host.Monotonic())
		s.Pages += local.Pages
		s.Bytes += local.Bytes
	}
	if status != state.OK {
		return s, ErrStore
	}
	r.eachMetric(func(name string, _ uint64) {
		s.Metrics = append(s.Metrics, Count{name, e.host.Counted(e.policy.Domain, r.policy.Name, name)})
	})
	return s, nil
}
