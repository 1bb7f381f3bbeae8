package engine

import "github.com/sluice-ratelimit/sluice/shared/state"

// memory is what a rule's tables take in Envoy, as this worker has last added
// it up. Where rules share a table the first reports it, so that the sum over
// rules is right.
type memory struct {
	own   bool   // this rule reports its table
	bytes uint64 // as of the last complete survey
	fresh bool   // a survey has ended since EachMemory

	at  int    // which of the rule's tables is surveyed
	sum uint64 // of those before
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

// Survey goes on adding up the memory of the tables, one rule after the other.
// Call it on a tick: a call reads a few pages only.
func (e *Engine) Survey() {
	for range e.rules {
		r := &e.rules[e.surveyed]
		if r.memory.own {
			tables := r.tables()
			bytes, done, _ := e.survey.Step(tables[r.memory.at]) // a failed survey begins anew
			if done {
				r.memory.sum += bytes
				if r.memory.at++; r.memory.at == len(tables) {
					r.memory.bytes, r.memory.fresh = r.memory.sum, true
					r.memory.sum, r.memory.at = 0, 0
					e.nextSurvey()
				}
				return
			}
			if e.survey.Begun() {
				return
			}
			r.memory.sum, r.memory.at = 0, 0
		}
		e.nextSurvey()
	}
}

// tables are those of the rule's counter: what it counts or leases in, and what
// counts in the place of a silent quota service, once it is used.
func (r *rule) tables() []*state.Table {
	if r.leases != nil && r.table != nil && r.table.Used() {
		return []*state.Table{r.counted, r.table}
	}
	return []*state.Table{r.counted}
}

func (e *Engine) nextSurvey() { e.surveyed = (e.surveyed + 1) % len(e.rules) }

// EachMemory calls f for every rule whose memory has been added up since the
// last call.
func (e *Engine) EachMemory(f func(s Series, bytes uint64)) {
	for i := range e.rules {
		if r := &e.rules[i]; r.memory.fresh {
			r.memory.fresh = false
			f(Series{Domain: e.policy.Domain, Rule: r.policy.Name}, r.memory.bytes)
		}
	}
}

// EachReported calls f for every rule whose memory EachMemory reports at some time.
func (e *Engine) EachReported(f func(s Series)) {
	for i := range e.rules {
		if e.rules[i].memory.own {
			f(Series{Domain: e.policy.Domain, Rule: e.rules[i].policy.Name})
		}
	}
}
