package draft

import (
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Maker makes one rule: NewMaker begins it, Finish ends it. Between them the caller adds the match, the
// exemptions and the key.
type Maker struct {
	*Findings
	at   source.Place // for notes about the rule
	Rule Rule
}

// NewMaker begins the rule of a limit.
func NewMaker(findings *Findings, name string, q *Quota, at source.Place) *Maker {
	m := &Maker{Findings: findings, at: at, Rule: Rule{Quota: q}}
	m.Rule.Name = Clip(name, 100)
	return m
}

// AddReasons adds what the selection of the requests and the limit say of the rule, and why it is off.
func (m *Maker) AddReasons(s request.Selection) {
	for _, text := range slices.Concat(s.Comments, m.Rule.Quota.Comments) {
		m.Comment(text)
	}
	for _, why := range slices.Concat(s.WhyOff, m.Rule.Quota.WhyOff) {
		m.TurnOff(why)
	}
}

// Comment adds a comment to the rule, and a note.
func (m *Maker) Comment(text string) {
	m.Rule.Comments = append(m.Rule.Comments, text)
	m.NoteOfRule(m.at, m.Rule.Name+": "+text)
}

// TurnOff turns the rule off, and says why.
func (m *Maker) TurnOff(why string) {
	m.Rule.Off = true
	m.Rule.Comments = append(m.Rule.Comments, "Off: "+why)
	m.NoteOfRule(m.at, m.Rule.Name+" is off: "+why)
}

// Finish completes the rule and returns it.
func (m *Maker) Finish() Rule {
	if n := len(m.Rule.Exempt); n > policy.MaxExempt {
		m.Rule.Exempt = m.Rule.Exempt[:policy.MaxExempt]
		m.TurnOff("It should exempt " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + ".")
	}
	if m.Rule.Off {
		m.Rule.Comments = append(m.Rule.Comments, "Remove mode once you have dealt with that.")
	}
	return m.Rule
}
