package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Memory is what the tables of a rule take in Envoy, and how many live keys they have.
type Memory struct {
	Series
	state.Found
	Capacity uint64 // the live keys that they are made for
}

// Survey goes on adding up the memory of the tables. Call it on a tick: a call reads a few pages
// only.
func (e *Engine) Survey() { e.surveyor.step() }

// EachMemory calls f for every rule that reports memory or, if only fresh, for those whose
// memory has been added up since the last call, or found to be none.
func (e *Engine) EachMemory(fresh bool, f func(m Memory)) {
	for i := range e.surveyor.rules {
		m := &e.surveyor.rules[i]
		if fresh && !m.fresh {
			continue
		}
		m.fresh = m.fresh && !fresh
		f(Memory{Series{Domain: e.policy.Domain, Rule: m.rule.Policy.Name}, m.found, uint64(m.rule.Policy.Capacity)})
	}
}

// surveyor adds up what the rules' tables take, one rule after the other, a few pages a call.
type surveyor struct {
	host   Host
	tables *state.Tables
	rules  []surveyed
	at     int          // the rule that is being added up
	survey state.Survey // of one of its tables
	nextNs int64        // when to prepare surveys again
}

// surveyed is the memory of one rule. Where rules share a table the first reports it, so that the
// sum over rules is right.
type surveyed struct {
	rule     *decide.Rule
	found    state.Found // as of the last complete round
	fresh    bool        // found is newer than the last EachMemory
	reported bool        // found has been fresh once: later, a rule without memory is not fresh again

	at  int         // which of the rule's tables is being added up
	sum state.Found // of those before
}

func newSurveyor(host Host, tables *state.Tables, list []rules.Rule) surveyor {
	s := surveyor{host: host, tables: tables}
	taken := map[*state.Table]bool{nil: true}
	for i := range list {
		if r := &list[i].Rule; !taken[r.Counted] {
			taken[r.Counted] = true
			s.rules = append(s.rules, surveyed{rule: r})
		}
	}
	return s
}

// prepareEveryNs is how often the tables that only other workers use are looked for: a
// directory of ten thousand tables takes milliseconds.
const prepareEveryNs = 10_000_000_000

// step goes on until it has read pages, or has been through all rules once: a table that nobody
// uses has no pages to read, so the next rule has its turn in the same call.
func (s *surveyor) step() {
	if len(s.rules) > 0 && s.rules[s.at].at == 0 && !s.survey.Begun() {
		if now := s.host.Monotonic(); now >= s.nextNs {
			s.nextNs = now + prepareEveryNs
			s.tables.PrepareSurveys()
		}
	}
	for range s.rules {
		hasRead := s.addUp(&s.rules[s.at])
		if !s.survey.Begun() {
			s.at = (s.at + 1) % len(s.rules)
		}
		if hasRead {
			return
		}
	}
}

// addUp goes on with a rule's tables, and reports whether it has read pages.
func (s *surveyor) addUp(m *surveyed) (hasRead bool) {
	for tables := m.rule.Tables(); m.at < len(tables); m.at++ {
		table := tables[m.at]
		found, done, status := s.survey.Step(table.Table, table.Scratch, table.OfRule)
		if s.survey.Begun() {
			return true
		}
		if status != state.OK { // it begins anew
			m.restart()
			return hasRead
		}
		m.sum.Bytes += found.Bytes
		if m.at == 0 {
			m.sum.Keys = found.Keys
		}
		hasRead = hasRead || done
	}
	if hasRead || !m.reported || m.found != (state.Found{}) {
		m.found = m.sum
		m.fresh, m.reported = true, true
	}
	m.restart()
	return hasRead
}

// restart has the next call begin with the rule's first table.
func (m *surveyed) restart() { m.sum, m.at = state.Found{}, 0 }
