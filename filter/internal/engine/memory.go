package engine

// memory is what a rule's table takes in Envoy, as this worker has last added
// it up. Of rules that share a table the first has it, so that the sum over
// rules is right.
type memory struct {
	own   bool   // the table is this rule's to report
	bytes uint64 // as of the last complete survey
	fresh bool   // a survey has ended since EachMemory
}

// assignMemory says whether the rule compiled last reports its table.
func (e *Engine) assignMemory() {
	last := len(e.rules) - 1
	r := &e.rules[last]
	r.memory.own = r.table != nil
	for i := range e.rules[:last] {
		if e.rules[i].table == r.table {
			r.memory.own = false
		}
	}
}

// Survey goes on adding up the memory of the tables, one rule after the other.
// Call it on a tick: a call reads a few buckets only.
func (e *Engine) Survey() {
	for range e.rules {
		r := &e.rules[e.surveyed]
		if r.memory.own {
			bytes, done, _ := e.survey.Step(r.table) // one that failed begins anew
			if done {
				r.memory.bytes, r.memory.fresh = bytes, true
				e.nextSurvey()
				return
			}
			if e.survey.Begun() {
				return
			}
		}
		e.nextSurvey()
	}
}

func (e *Engine) nextSurvey() { e.surveyed = (e.surveyed + 1) % len(e.rules) }

// EachMemory calls f for every rule whose memory has been added up since the
// last call.
func (e *Engine) EachMemory(f func(rule string, bytes uint64)) {
	for i := range e.rules {
		if r := &e.rules[i]; r.memory.fresh {
			r.memory.fresh = false
			f(r.policy.Name, r.memory.bytes)
		}
	}
}

// ReportsMemory reports whether the policy has a rule of that name, and the
// rule's table is its own to report.
func (e *Engine) ReportsMemory(name string) bool {
	r := e.rule(name)
	return r != nil && r.memory.own
}

// EachRule calls f for the name of every rule that is not off.
func (e *Engine) EachRule(f func(name string)) {
	for i := range e.rules {
		f(e.rules[i].policy.Name)
	}
}
