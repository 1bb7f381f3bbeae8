package draft

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Rule is a rule in the making. NewRule begins it. Then its reader sets the fields that it needs, adds the remarks of
// the selection and the limit, and calls Finish.
//
// These methods give it comments, and turn it off:
//
//	            the policy gets            the user gets the note   callers
//	Comment     # TEXT                     NAME: TEXT               readers, before Finish; AddRemarks
//	TurnOff     mode: off, and # Off: WHY  NAME is off: WHY         readers, before Finish; AddRemarks
//	CommentAt   # TEXT                     NAME: TEXT, at a place   a filter that enforces a share of its rules
//	CommentOnly # TEXT                     none                     a filter: one note is for all its rules
//	SwitchOff   mode: off                  none                     a filter: one note is for all its rules
type Rule struct {
	Name        string // Draft.Finish makes it unique
	Match       request.Match
	Exempt      []request.Match
	Key         []request.Part
	Quota       Quota // the limit; a copy of its own
	Overrides   []Override
	Cost        uint64 // 0 = 1
	Capacity    uint64 // 0 = the default of policies
	MissingKey  string
	CountDenied bool
	Response    *Response
	Identity    string // of its limit in the configuration, which the name is not: only rules of one limit share a counter

	counter, scope, lease string // set by Draft.Finish, when it knows all rules

	findings *Findings
	at       source.Place // for notes about the rule
	off      bool
	comments []string
}

// NewRule begins the rule of a limit.
func NewRule(findings *Findings, name string, q *Quota, at source.Place) *Rule {
	return &Rule{Name: Clip(name, 100), Quota: *q, findings: findings, at: at}
}

// CountEach makes the rule count each value of one more part of the request for itself. Its overrides are for all of
// these values.
func (r *Rule) CountEach(p request.Part) {
	r.Key = slices.Insert(slices.Clone(r.Key), 0, p)
	for i := range r.Overrides {
		r.Overrides[i].Patterns = slices.Insert(r.Overrides[i].Patterns, 0, "*")
	}
}

// Comment adds a comment, and a note.
func (r *Rule) Comment(text string) { r.CommentAt(r.at, text) }

// CommentAt adds a comment, and a note about a place.
func (r *Rule) CommentAt(at source.Place, text string) {
	r.CommentOnly(text)
	r.findings.NoteOfRule(at, r.Name+": "+text)
}

// CommentOnly adds a comment. The caller notes it for several rules at once.
func (r *Rule) CommentOnly(text string) { r.comments = append(r.comments, text) }

// TurnOff turns the rule off, and says why.
func (r *Rule) TurnOff(why string) {
	r.SwitchOff()
	r.CommentOnly("Off: " + why)
	r.findings.NoteOfRule(r.at, r.Name+" is off: "+why)
}

// SwitchOff turns the rule off. The caller notes why for several rules at once.
func (r *Rule) SwitchOff() { r.off = true }

// AddRemarks adds what the selection of the rule's requests has to say of it, and its limit.
func (r *Rule) AddRemarks(ofSelection request.Remarks) {
	for _, text := range slices.Concat(ofSelection.Comments, r.Quota.Comments) {
		r.Comment(text)
	}
	for _, why := range slices.Concat(ofSelection.WhyOff, r.Quota.WhyOff) {
		r.TurnOff(why)
	}
}

// Finish ends what the reader has to say of the rule. Only what holds for a whole filter may follow.
func (r *Rule) Finish() *Rule {
	if n := len(r.Exempt); n > policy.MaxExempt {
		r.Exempt = r.Exempt[:policy.MaxExempt]
		r.TurnOff("It should exempt " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + ".")
	}
	if r.off {
		r.CommentOnly("Remove mode once you have dealt with that.")
	}
	return r
}

// mayShareCounter reports whether two rules may share a counter: they count by one limit of the configuration, over
// the same keys and time. A rule that is off has a counter of its own.
func (r *Rule) mayShareCounter(other *Rule) bool {
	isAlike := r.Quota.Algorithm == other.Quota.Algorithm && r.Quota.Per == other.Quota.Per
	return isAlike && !r.off && !other.off && r.Identity == other.Identity &&
		slices.EqualFunc(r.Key, other.Key, request.Part.Is)
}

// LimitedRequests is a match for the requests that the rule limits. The caller leaves the requests exempt out
// anyway, so the match may have some of them: for a rule of the paths /a* with the exempt /a/b, and the same
// in exempt, it is the paths /a*. It is not ok where no match can say which requests those are: the rule is off,
// exempts other requests too, lets some keys pass, or needs a part that no match can ask for. A rule that has x-user
// in its key limits the requests with that header; for a query parameter no match can say that.
func (r *Rule) LimitedRequests(exempt []request.Match) (m request.Match, ok bool) {
	isLeft := func(m request.Match) bool { return !slices.ContainsFunc(exempt, m.Equal) }
	if r.off || slices.ContainsFunc(r.Exempt, isLeft) || slices.ContainsFunc(r.Overrides, Override.isUnlimited) {
		return nil, false
	}
	m = r.Match
	for _, p := range r.Key {
		switch {
		case p.Kind == request.KindHeader && m.Of(p) == nil:
			m = m.With(p, request.Present)
		case p.Kind == request.KindQuery, p.Kind == request.KindProperty:
			return nil, false
		}
	}
	return m, true
}

// Clip makes text fit for a rule's name: printable, without space at its ends,
// at most size bytes long.
func Clip(text string, size int) string {
	return printable.Cut(strings.TrimSpace(printable.Text(text)), size)
}
