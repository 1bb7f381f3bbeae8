package engine

import "github.com/sluice-ratelimit/sluice/shared/state"

// memory is what a rule's tables take in Envoy, and how many live keys they have, as
// this worker has last added it up. Where rules share a table the first reports it, so
// that the sum over rules is right.
type memory struct {
	own   bool        // this rule reports its table
	found state.Found // as of the last complete survey
	fresh bool        // a survey has ended since EachMemory

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
	for i := range e.rules {
		r := &e.rules[i]
		r.memory.own = !reported[r.counted]
		reported[r.counted] = true
	}
}

// peekNs is how often the tables that this worker has not used are looked for: a
// directory of ten thousand tables takes milliseconds.
const peekNs = 10_000_000_000

// Survey goes on adding up the memory of the tables, one rule after the other.
// Call it on a tick: a call reads a few pages only.
func (e *Engine) Survey() {
	if len(e.rules) > 0 && e.rules[e.surveyed].memory.at == 0 && !e.survey.Begun() {
		if now := e.host.Monotonic(); now >= e.peekAtNs {
			e.peekAtNs = now + peekNs
			e.tables.Peek()
		}
	}
	for range e.rules {
		r := &e.rules[e.surveyed]
		if r.memory.own {
			tables := r.tables()
			if r.memory.at >= len(tables) { // a split has closed the second since
				r.memory.sum, r.memory.at, e.survey = state.Found{}, 0, state.Survey{}
			}
			t := tables[r.memory.at]
			found, done, _ := e.survey.Step(t, func(value []byte) uint64 { return e.live(r, t, value) }) // a failed survey begins anew
			if done {
				r.memory.sum.Bytes += found.Bytes
				r.memory.sum.Keys += found.Keys
				if r.memory.at++; r.memory.at == len(tables) {
					r.memory.found, r.memory.fresh = r.memory.sum, true
					r.memory.sum, r.memory.at = state.Found{}, 0
					e.nextSurvey()
				}
				return
			}
			if e.survey.Begun() {
				return
			}
			r.memory.sum, r.memory.at = state.Found{}, 0
		}
		e.nextSurvey()
	}
}

// live counts the live keys of a page. Those of a rule of scope cluster are those of
// its leases, as in stats.
func (e *Engine) live(r *rule, t *state.Table, value []byte) uint64 {
	switch {
	case r.leases == nil:
		return t.Live(&e.attempt(0).entry, r.subjects.Windows, e.host.Now(), value)
	case t == r.counted:
		return r.leases.table.Live(&e.settling, e.host.Now(), e.host.Monotonic(), value)
	default:
		return 0
	}
}

// tables are those of the rule's counter: what it counts or leases in, and what
// counts in the place of a silent quota service, once it is used.
func (r *rule) tables() []*state.Table {
	if r.leases != nil && r.table != nil && r.table.Known() {
		return []*state.Table{r.counted, r.table}
	}
	return []*state.Table{r.counted}
}

func (e *Engine) nextSurvey() { e.surveyed = (e.surveyed + 1) % len(e.rules) }

// EachMemory calls f for every rule whose memory has been added up since the
// last call.
func (e *Engine) EachMemory(f func(m Memory)) {
	for i := range e.rules {
		if r := &e.rules[i]; r.memory.fresh {
			r.memory.fresh = false
			f(e.memoryOf(r))
		}
	}
}

// EachReported calls f for every rule that EachMemory reports at some time.
func (e *Engine) EachReported(f func(m Memory)) {
	for i := range e.rules {
		if e.rules[i].memory.own {
			f(e.memoryOf(&e.rules[i]))
		}
	}
}

func (e *Engine) memoryOf(r *rule) Memory {
	return Memory{Series{Domain: e.policy.Domain, Rule: r.policy.Name}, r.memory.found, uint64(r.policy.Capacity)}
}
