package engine

import (
	"errors"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Operation is what can be done to counters from outside.
type Operation struct {
	Name   string   // one of Operations
	Rule   string   // clean and stats: empty = all rules
	Key    []string // the key's parts as text; not for clean and stats
	N      uint32   // units: of hit, peek, inc and set
	Window string   // name or index of one window for inc and set; empty = all
}

// Operations are the names of all operations.
var Operations = []string{"hit", "peek", "get", "inc", "set", "reset", "expires_at", "clean", "stats"}

// ErrStore says that a call into the proxy failed, or that others kept writing.
var ErrStore = errors.New("the counters could not be read or written")

// Operate carries out an operation and appends its answer as JSON to b: a
// verdict for hit and peek; rules with their metrics, of all workers, for stats;
// otherwise
//
//	{"value":5,"windows":[…]}
//
// with windows as in a verdict. The value is what the window named by the
// operation has used, else the tightest one; for expires_at it is in nanoseconds
// since the epoch, for reset 1 if the key had a record and 0 if not, and for
// clean how many records it freed.
func (e *Engine) Operate(b []byte, op Operation) ([]byte, error) {
	if !slices.Contains(Operations, op.Name) {
		return b, errors.New("unknown operation " + strconv.Quote(op.Name))
	}
	if op.Name == "clean" || op.Name == "stats" {
		return e.operateOnRules(b, op)
	}
	t, err := e.subject(op)
	if err != nil {
		return b, err
	}
	now := e.host.Now()
	v := &e.verdict
	v.begin()
	v.tries, v.Now = e.tries[:1], now
	switch op.Name {
	case "peek":
		t.check(now)
		v.settle()
		return v.AppendReport(b), nil
	case "hit":
		e.decide(v.tries, now)
		return v.AppendReport(b), nil
	}
	if t.free {
		return b, errors.New("rule " + strconv.Quote(op.Rule) + " counts nothing for this key")
	}
	value, err := t.operate(op, now)
	if err != nil {
		return b, err
	}
	b = strconv.AppendInt(append(b, `{"value":`...), value, 10)
	return append(t.appendWindows(append(b, `,"windows":`...), now), '}'), nil
}

// subject makes the first try that of the operation's rule and key.
func (e *Engine) subject(op Operation) (*attempt, error) {
	r := e.rule(op.Rule)
	if r == nil {
		return nil, errors.New("there is no rule " + strconv.Quote(op.Rule))
	}
	if len(op.Key) != len(r.key) {
		parts := " parts, not "
		if len(r.key) == 1 {
			parts = " part, not "
		}
		return nil, errors.New("the key of rule " + strconv.Quote(op.Rule) + " has " + strconv.Itoa(len(r.key)) + parts + strconv.Itoa(len(op.Key)))
	}
	t := e.attempt(0)
	t.start(r)
	t.cost = op.N
	t.key.begin()
	for i, text := range op.Key {
		p, err := r.key[i].parse(text)
		if err != nil {
			return nil, errors.New("part " + strconv.Itoa(i) + " of the key of rule " + strconv.Quote(op.Rule) + ": " + err.Error())
		}
		t.key.add(p)
	}
	t.subject(&e.request)
	return t, nil
}

func (e *Engine) rule(name string) *rule {
	for i := range e.rules {
		if e.rules[i].policy.Name == name {
			return &e.rules[i]
		}
	}
	return nil
}

// operate reads the key's usage and changes it, until nobody writes in between.
func (t *attempt) operate(op Operation, now int64) (value int64, err error) {
	window, err := t.rule.window(op.Window)
	if err != nil {
		return 0, err
	}
	table := t.rule.table
	for range maxRetries {
		if table.Read(&t.entry, t.limits, now) != state.OK {
			break
		}
		t.known = true
		status, had := state.OK, false
		switch op.Name {
		case "inc":
			status = table.Inc(&t.entry, window, op.N, t.evicts())
		case "set":
			status = table.Set(&t.entry, window, op.N, t.evicts())
		case "reset":
			had, status = table.Reset(&t.entry, t.evicts())
		}
		switch {
		case status == state.Full:
			return 0, errors.New("the page of this key is full, and on_full does not evict")
		case status == state.Mismatch:
			continue
		case status != state.OK:
			return 0, ErrStore
		case op.Name == "reset":
			t.known = table.Read(&t.entry, t.limits, now) == state.OK // the windows are what they are now
			return one(had), nil
		case op.Name == "inc" || op.Name == "set":
			t.stored()
		case op.Name == "expires_at":
			return t.expiresAt(), nil
		}
		if window == state.AllWindows {
			window = t.rule.order[t.tightest()]
		}
		return int64(t.limits.Windows[window].Count(table.Usage(&t.entry, window), t.entry.Now)), nil
	}
	return 0, ErrStore
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// expiresAt is when the tightest window starts anew; 0 for one of the key's own
// that has not begun.
func (t *attempt) expiresAt() int64 {
	w, u := t.window(t.tightest())
	if at := w.Reset(u, t.entry.Now); at > t.entry.Now {
		return at
	}
	return 0
}

// window returns the index in r.windows of the window with that name or index
// in the policy, state.AllWindows for none.
func (r *rule) window(name string) (int, error) {
	if name == "" {
		return state.AllWindows, nil
	}
	for i, l := range r.policy.Limits {
		if l.Name == name || strconv.Itoa(i) == name {
			return r.order[i], nil
		}
	}
	return 0, errors.New("rule " + strconv.Quote(r.policy.Name) + " has no window " + strconv.Quote(name))
}

// operateOnRules cleans, or describes, the rule or all rules.
func (e *Engine) operateOnRules(b []byte, op Operation) ([]byte, error) {
	if op.Rule != "" && e.rule(op.Rule) == nil {
		return b, errors.New("there is no rule " + strconv.Quote(op.Rule))
	}
	now, freed, first := e.host.Now(), uint64(0), true
	if op.Name == "stats" {
		b = append(b, `{"rules":[`...)
	}
	for i := range e.rules {
		r := &e.rules[i]
		if op.Rule != "" && op.Rule != r.policy.Name {
			continue
		}
		if op.Name == "clean" {
			n, err := e.clean(r, now)
			if err != nil {
				return b, err
			}
			freed += n
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		var err error
		if b, err = e.appendStats(b, r, now); err != nil {
			return b, err
		}
	}
	if op.Name == "stats" {
		return append(b, "]}"...), nil
	}
	return append(strconv.AppendUint(append(b, `{"value":`...), freed, 10), '}'), nil
}

func (e *Engine) clean(r *rule, now int64) (uint64, error) {
	if r.table == nil {
		return 0, nil
	}
	freed, status := r.table.Clean(&e.attempt(0).entry, r.windows, now)
	if status != state.OK {
		return 0, ErrStore
	}
	return freed, nil
}

func (e *Engine) appendStats(b []byte, r *rule, now int64) ([]byte, error) {
	var s state.Stats
	if r.table != nil {
		var status state.Status
		if s, status = r.table.Stats(&e.attempt(0).entry, r.windows, now); status != state.OK {
			return b, ErrStore
		}
	}
	b = policy.AppendString(append(b, `{"rule":`...), r.policy.Name)
	for _, c := range [...]struct {
		name  string
		count uint64
	}{{"keys", s.Keys}, {"capacity", uint64(r.policy.Capacity)}, {"slots", s.Slots}, {"buckets", s.Pages}, {"bytes", s.Bytes}} {
		b = strconv.AppendUint(append(append(append(b, `,"`...), c.name...), `":`...), c.count, 10)
	}
	b = append(b, `,"metrics":{`...)
	first := true
	r.metrics.each(func(name string, _ uint64) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = strconv.AppendUint(append(policy.AppendString(b, name), ':'), e.host.Counted(r.policy.Name, name), 10)
	})
	return append(b, "}}"...), nil
}
