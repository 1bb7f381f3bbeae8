package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Series is what one metric counts.
type Series struct {
	Domain, Rule string
	Override     string // empty: all requests of the rule
	Metric       string // without prefix and unit
}

// VMStarts counts the VMs that the proxy has made of this filter binary, see OnVMStart.
var VMStarts = Series{Metric: "vm_starts"}

// EachHolding calls f for what this worker's streams hold of each rule that holds, in a
// stable order.
func (e *Engine) EachHolding(f func(s Series, h decide.Holding)) {
	for i := range e.rules.List {
		if r := &e.rules.List[i]; r.Policy.Holds() {
			f(Series{Domain: e.policy.Domain, Rule: r.Policy.Name}, r.Holding)
		}
	}
}

// ShareHolding says what the streams of this configuration in this VM hold of a rule, and
// returns what those of all VMs hold. self is unlike that of any other.
func (e *Engine) ShareHolding(s *Series, self uint64, own decide.Holding) (all decide.Holding, ok bool) {
	all, status := e.tables.ShareHolding(uint32(state.OwnerID(s.Domain, "\x00", s.Rule)), self, own)
	return all, status == state.OK
}

// EachMetric calls f for every metric of every rule, in a stable order.
func (e *Engine) EachMetric(f func(s Series, count uint64)) {
	for i := range e.rules.List {
		r := &e.rules.List[i]
		s := Series{Domain: e.policy.Domain, Rule: r.Policy.Name}
		r.Each(func(name string, count uint64) {
			s.Metric = name
			f(s, count)
		})
		for j := range r.Named {
			n := &r.Named[j]
			s.Override = n.Name
			for _, c := range [...]struct {
				name  string
				count uint64
			}{{"allowed", n.Allowed}, {"denied", n.Denied}, {"shadow_denied", n.ShadowDenied}} {
				s.Metric = c.name
				f(s, c.count)
			}
		}
	}
}

// memory is what a rule's tables take in Envoy, and how many live keys they have, as
// this worker has last added it up. Where rules share a table the first reports it, so
// that the sum over rules is right.
type memory struct {
	rule  *decide.Rule
	found state.Found // as of the last complete survey
	fresh bool        // a survey has ended since EachMemory
	known bool        // found has been reported, so that 0 need not be reported again

	at  int         // which of the rule's tables is surveyed
	sum state.Found // of those before
}

// Memory is what the table of a rule takes and holds.
type Memory struct {
	Series
	state.Found
	Capacity uint64 // the live keys that it is made for
}

// assignMemory says which rules report their tables.
func (e *Engine) assignMemory() {
	reported := map[*state.Table]bool{nil: true}
	for i := range e.rules.List {
		if r := &e.rules.List[i].Rule; !reported[r.Counted] {
			reported[r.Counted] = true
			e.memory = append(e.memory, memory{rule: r})
		}
	}
}

// peekNs is how often the tables that this worker has not used are looked for: a
// directory of ten thousand tables takes milliseconds.
const peekNs = 10_000_000_000

// Survey goes on adding up the memory of the tables, one rule after the other.
// Call it on a tick: a call reads a few pages only.
func (e *Engine) Survey() {
	if len(e.memory) > 0 && e.memory[e.surveyed].at == 0 && !e.survey.Begun() {
		if now := e.host.Monotonic(); now >= e.peekAtNs {
			e.peekAtNs = now + peekNs
			e.tables.Peek()
		}
	}
	for range e.memory {
		worked := e.surveyNext(&e.memory[e.surveyed])
		if !e.survey.Begun() {
			e.surveyed = (e.surveyed + 1) % len(e.memory)
		}
		if worked {
			return
		}
	}
}

// surveyNext goes on with a rule's tables. It reports whether that was enough for a call:
// a table that nobody uses costs nothing, and has nothing.
func (e *Engine) surveyNext(m *memory) (worked bool) {
	for tables := m.rule.Tables(); m.at < len(tables); m.at++ {
		table := tables[m.at]
		found, done, status := e.survey.Step(table.Table, func(value []byte) uint64 {
			return table.Live(table.Entry, table.Rule, e.host.Now(), value)
		})
		if e.survey.Begun() {
			return true
		}
		if status != state.OK { // it begins anew
			m.sum, m.at = state.Found{}, 0
			return worked
		}
		m.sum.Bytes += found.Bytes
		if m.at == 0 {
			m.sum.Keys = found.Keys
		}
		worked = worked || done
	}
	if worked || !m.known || m.found != (state.Found{}) {
		m.found = m.sum
		m.fresh, m.known = true, true
	}
	m.sum, m.at = state.Found{}, 0
	return worked
}

// EachMemory calls f for every rule that reports memory or, if only fresh, for those whose
// memory has been added up since the last call, or found to be none.
func (e *Engine) EachMemory(fresh bool, f func(m Memory)) {
	for i := range e.memory {
		m := &e.memory[i]
		if fresh && !m.fresh {
			continue
		}
		m.fresh = m.fresh && !fresh
		f(Memory{Series{Domain: e.policy.Domain, Rule: m.rule.Policy.Name}, m.found, uint64(m.rule.Policy.Capacity)})
	}
}
