package draft

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Rule is a rule in the making: of one limit, for the requests of one selection. Its reader sets the fields that it
// needs, and may have more to say of the rule:
//
//	          the policy gets            the user gets the note
//	Comment   # TEXT                     NAME: TEXT
//	TurnOff   mode: off, and # Off: WHY  NAME is off: WHY
//
// CountEach, Enforce, Shadow and Disable are for what a filter of Envoy says of all its rules.
//
// Rules count together if their names are equal, and so are their Identity, Key, algorithm and time: see
// mayShareCounter.
type Rule struct {
	// The reader sets these.
	Key         []request.Part
	Overrides   []Override
	Cost        uint64 // 0 = 1
	Capacity    uint64 // 0 = the default of policies
	MissingKey  string
	CountDenied bool
	Response    *Response
	Identity    string // of the limit; its place, if the reader sets nothing else

	name     string // for users: rules that may count together have one
	limit    *Limit
	requests request.Selection
	exempt   []request.Match // of the requests, as the policy has them
	at       source.Place    // for notes about the rule
	findings *Findings

	comments []string
	off      offKind
	shadow   bool   // it counts, and denies nothing
	percent  uint64 // of its keys that it denies, from 1 to all

	// Draft.Finish sets these, when it knows all rules.
	policyName            string // its name, or with a number behind it where an earlier rule has that
	counter, scope, lease string
}

// all is the percentage of a rule that denies for each of its keys.
const all = 100

// offKind is why a rule is off, if it is. Each kind outweighs those above it.
//
//	            why                                                   by
//	filterOff   its filter is off there too: nothing is to be done    Disable
//	unsaid      a policy cannot say it: the user must see to it       TurnOff, which says why in a comment:
//	              a remark in WhyOff of its requests or its limit       NewRule
//	              more exemptions than a rule may have                  NewRule
//	              requests that no override can tell from others        package descriptor
type offKind uint8

const (
	isOn offKind = iota
	filterOff
	unsaid
)

// NewRule makes the rule of a limit for some requests. It has the remarks of both, and is off if a policy cannot say
// one of them. Its reader adds it to Draft.Rules, in the order of the file.
func NewRule(to *Findings, name string, at source.Place, limit *Limit, requests request.Selection) *Rule {
	r := &Rule{
		Identity: limit.At.String(), name: cmp.Or(Clip(name, 100), "rule"),
		limit: limit, requests: requests, at: at, findings: to, shadow: limit.Shadow, percent: all,
	}
	for _, text := range slices.Concat(requests.Comments, limit.Comments) {
		r.Comment(text)
	}
	for _, why := range slices.Concat(requests.WhyOff, limit.WhyOff) {
		r.TurnOff(why)
	}
	r.exempt = request.Joined(requests.Exempt)
	if n := len(r.exempt); n > policy.MaxExempt {
		r.exempt = r.exempt[:policy.MaxExempt]
		r.TurnOff("It should exempt " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + ".")
	}
	return r
}

// Comment adds a comment, and a note.
func (r *Rule) Comment(text string) { r.commentAt(r.at, text) }

func (r *Rule) commentAt(at source.Place, text string) {
	r.addComment(text)
	r.findings.noteOf(r, at, ": "+text)
}

// addComment adds a comment once, as what it says may hold for many routes.
func (r *Rule) addComment(text string) {
	if !slices.Contains(r.comments, text) {
		r.comments = append(r.comments, text)
	}
}

// TurnOff turns the rule off, and says why.
func (r *Rule) TurnOff(why string) {
	r.off = unsaid
	r.addComment("Off: " + why)
	r.findings.noteOf(r, r.at, " is off: "+why)
}

// CountEach makes the rule count each value of one more part of the request for itself. Its overrides are for all of
// these values. The comment is the rule's: the caller notes it once, for all its rules.
func (r *Rule) CountEach(p request.Part, comment string) {
	r.Key = slices.Insert(slices.Clone(r.Key), 0, p)
	for i := range r.Overrides {
		r.Overrides[i].Patterns = slices.Insert(r.Overrides[i].Patterns, 0, "*")
	}
	r.addComment(comment)
}

// Disable turns the rule off, as its filter is off there too.
func (r *Rule) Disable() { r.off = max(r.off, filterOff) }

func (r *Rule) isOff() bool { return r.off != isOn }

// Shadow makes the rule count, and deny nothing.
func (r *Rule) Shadow() { r.shadow = true }

// Enforce makes the rule deny for some percent of its keys alone, at least 1. A rule without a key has no share of
// keys, and is shadow: so CountEach, which gives it one, comes first.
func (r *Rule) Enforce(percent uint64) {
	if percent < all && len(r.Key) == 0 && !r.shadow {
		r.Shadow()
		r.commentAt(r.limit.At, "The rule has one counter for all requests, and enforce_percent chooses among keys: "+
			"it is shadow.")
	}
	r.percent = percent
}

// LimitedRequests is a match for the requests that the rule limits. It is not ok where no match can say which those
// are. The caller leaves the requests exempt out anyway, so the match may have some of them:
//
//	the rule                                            the match
//	paths: [/a*], exempt: /a/b, which the caller has    paths: [/a*]
//	paths: [/a*], exempt: /a/b, which it has not        not ok
//	key: [{header: x-user}]                             headers: {x-user: "*"}
//	key: [{query: user}]                                not ok: no match asks for a query parameter
//	lets some keys pass by an override                  not ok
//	is off by TurnOff                                   not ok
//	is off by Disable, with all rules of its filter     as without Disable, so the order of the calls does not matter
func (r *Rule) LimitedRequests(exempt []request.Match) (m request.Match, ok bool) {
	isLeft := func(m request.Match) bool { return !slices.ContainsFunc(exempt, m.Equal) }
	if r.off == unsaid || slices.ContainsFunc(r.requests.Exempt, isLeft) ||
		slices.ContainsFunc(r.Overrides, Override.isUnlimited) {
		return nil, false
	}
	m = r.requests.Match
	for _, p := range r.Key {
		switch {
		case p.Kind == request.KindHeader && m.Of(p) == nil:
			m, _ = m.And(p.Matching(request.Present))
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
