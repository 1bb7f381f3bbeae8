package engine

import "fmt"

// Operation is what can be done to one key of one rule from outside.
type Operation string

const (
	Hit  Operation = "hit"  // decide and count, as a request would
	Peek Operation = "peek" // decide without counting
)

// Operate carries out an operation on one key of a rule; parts are the key's
// parts as text. The verdict is valid until the next call.
func (e *Engine) Operate(op Operation, ruleName string, parts []string, cost uint32) (*Verdict, error) {
	r := e.rule(ruleName)
	if r == nil {
		return nil, fmt.Errorf("there is no rule %q", ruleName)
	}
	if len(parts) != len(r.key) {
		return nil, fmt.Errorf("the key of rule %q has %d parts, not %d", ruleName, len(r.key), len(parts))
	}
	v := &e.verdict
	v.begin()
	v.tries, v.Now = e.tries[:1], e.host.Now()
	t := &v.tries[0]
	t.rule, t.cost, t.known, t.counted, t.allowed, t.reason = r, cost, false, false, true, ""
	t.key.begin()
	for _, text := range parts {
		t.key.add(part{text, true})
	}
	switch op {
	case Peek:
		t.check(v.Now)
		v.settle()
	case Hit:
		e.decide(v.tries, v.Now)
	default:
		return nil, fmt.Errorf("unknown operation %q: it must be hit or peek", op)
	}
	return v, nil
}

func (e *Engine) rule(name string) *rule {
	for i := range e.rules {
		if e.rules[i].policy.Name == name {
			return &e.rules[i]
		}
	}
	return nil
}
