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
// the selection and the limit, and calls CapExempt. What holds for all rules of a filter of Envoy follows:
//
//	CountEach, CommentOnly                    localImport.countEachConnection
//	Response, Quota.Shadow, Quota.Percent,    enforcement.apply
//	CommentAt, SwitchOff
//
// These methods give it comments, and turn it off:
//
//	            the policy gets            the user gets the note   callers
//	Comment     # TEXT                     NAME: TEXT               readers; AddRemarks
//	TurnOff     mode: off, and # Off: WHY  NAME is off: WHY         readers; AddRemarks and CapExempt
//	CommentAt   # TEXT                     NAME: TEXT, at a place   a filter that enforces a share of its rules
//	CommentOnly # TEXT                     none                     a filter: one note is for all its rules
//	SwitchOff   mode: off                  none                     a filter: one note is for all its rules
//
// A rule that SwitchOff alone turns off has no line "Remove mode". That is meant: its filter is off there too.
type Rule struct {
	// NewRule sets these.
	Name  string // Draft.Finish makes it unique
	Quota Quota  // the limit, a copy of its own. A filter of Envoy sets its Shadow and Percent

	// The reader sets these.
	Match       request.Match
	Exempt      []request.Match
	Key         []request.Part
	Overrides   []Override
	Cost        uint64 // 0 = 1
	Capacity    uint64 // 0 = the default of policies
	MissingKey  string
	CountDenied bool
	Response    *Response // that of Envoy is its filter's, for all rules
	// Rules share a counter only if this is equal: it names the limit in the configuration. The name may be that of
	// several limits.
	Identity string

	// Draft.Finish sets these, when it knows all rules.
	counter, scope, lease string

	findings *Findings
	at       source.Place // for notes about the rule

	// The methods above set these.
	off      bool // by TurnOff or SwitchOff
	hasWhy   bool // TurnOff said why. Then the policy says to remove mode once the user has dealt with that
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
	r.hasWhy = true
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

// CapExempt turns the rule off if it has more exemptions than a policy takes, and leaves out those beyond.
func (r *Rule) CapExempt() {
	if n := len(r.Exempt); n > policy.MaxExempt {
		r.Exempt = r.Exempt[:policy.MaxExempt]
		r.TurnOff("It should exempt " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + ".")
	}
}

// LimitedRequests is a match for the requests that the rule limits. It is not ok where no match can say which those
// are. The caller leaves the requests exempt out anyway, so the match may have some of them:
//
//	the rule                                            the match
//	paths: [/a*], exempt: /a/b, which the caller has    paths: [/a*]
//	paths: [/a*], exempt: /a/b, which it has not        not ok
//	key: [{header: x-user}]                             headers: {x-user: "*"}
//	key: [{query: user}]                                not ok: no match asks for a query parameter
//	is off, or lets some keys pass by an override       not ok
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
