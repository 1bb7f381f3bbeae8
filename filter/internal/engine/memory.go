package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// memory is what a rule's tables take in Envoy, and how many live keys they have, as
// this worker has last added it up. Where rules share a table the first reports it, so
// that the sum over rules is right.
type memory struct {
	rule  *decide.Rule
	found state.Found // as of the last complete survey
	fresh bool        // a survey has ended since EachMemory
	known bool        // found has been reported, so that 0 need not be said again

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
		if m.sum.Bytes += found.Bytes; m.at == 0 {
			m.sum.Keys = found.Keys
		}
		worked = worked || done
	}
	if worked || !m.known || m.found != (state.Found{}) {
		m.found, m.fresh, m.known = m.sum, true, true
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
