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

// Terms are what a reader says of a rule.
type Terms struct {
	Name     string       // for users
	At       source.Place // for notes about the rule
	Limit    *Limit
	Requests request.Selection

	Key         []request.Part
	Overrides   []Override
	Cost        uint64            // 0 = 1
	Capacity    uint64            // 0 = the default of policies
	MissingKey  policy.MissingKey // the zero one = the default of policies
	CountsBy    LimitID           // the zero one = the place of the limit: see shareCounters
	Enforcement Enforcement
}

// countsDenied reports whether denied requests count. Envoy's limiters with windows count a request before they
// compare. At cost 1 that makes no difference: the window is full already. Those with token buckets take nothing for a
// denied request.
func (t *Terms) countsDenied() bool { return t.Cost > 1 && t.Limit.isWindowed() }

// LimitID says by which limit of the configuration a rule counts.
type LimitID struct {
	At  source.Place
	Key string // what else tells the counters of a limit apart
}

// Enforcement is what a limiter says of all its rules.
type Enforcement struct {
	Disabled bool   // the limiter does nothing, so its rules do nothing either
	Shadow   bool   // it counts, and denies nothing
	Percent  uint64 // of its keys that a rule denies, from 1 to 99; 0 = all
	Response *Response
	At       source.Place // of the limiter

	PerConnection bool // each connection counts for itself
}

// Rule is a rule in the making.
type Rule struct {
	terms     Terms
	exempt    []request.Match // as the policy has them
	isOff     bool            // as a policy cannot say it: the user must see to it, so a comment says why
	modeThere policy.Mode     // in the limiter, and here too unless it is off; empty = it denies
	percent   uint64          // of its keys that it denies; 0 = all of them
	comments  []note          // Draft.Add adds them to the findings
}

// mode is the rule's mode in the policy; empty if it denies.
func (r *Rule) mode() policy.Mode {
	if r.isOff {
		return policy.ModeOff
	}
	return r.modeThere
}

// NewRule makes a rule. Draft.Add adds it.
func NewRule(t Terms) *Rule {
	t.Name = cmp.Or(Clip(t.Name, 100), "rule")
	t.CountsBy = cmp.Or(t.CountsBy, LimitID{At: t.Limit.At})
	exempt := request.Joined(t.Requests.Exempt())
	said := t.Requests.Remarks
	said.AddAll(t.Limit.Remarks)
	if n := len(exempt); n > policy.MaxExempt {
		exempt = exempt[:policy.MaxExempt]
		said.TurnOff(request.WhyOff("It should exempt " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + "."))
	}
	r := &Rule{terms: t, exempt: exempt, isOff: said.IsOff()}
	for _, text := range said.Comments() {
		r.comment(ofRule, t.At, text)
	}
	for _, why := range said.WhyOff() {
		r.comment(saysWhyOff, t.At, string(why))
	}
	if t.Enforcement.PerConnection {
		r.countEachConnection()
	}
	r.enforce()
	return r
}

// countEachConnection adds the connection to the key. The overrides are for all of its values.
func (r *Rule) countEachConnection() {
	t := &r.terms
	t.Key = slices.Concat([]request.Part{request.ConnectionID}, t.Key)
	overrides := t.Overrides
	t.Overrides = nil
	for _, o := range overrides {
		t.Overrides = append(t.Overrides, Override{slices.Concat([]string{"*"}, o.Patterns), o.Limit})
	}
	r.comment(ofLimiter, t.Enforcement.At, "Envoy has a bucket for each connection. Here the key is the "+
		"connection's id, and a record stays until its bucket is full again.")
}

// enforce sets what the limiter does with requests that are over the limit.
func (r *Rule) enforce() {
	e := &r.terms.Enforcement
	switch {
	case e.Disabled:
		r.modeThere = policy.ModeOff
	case e.Shadow, r.terms.Limit.Shadow:
		r.modeThere = policy.ModeShadow
	case e.Percent == 0, len(r.terms.Key) > 0:
		r.percent = e.Percent
	default:
		r.modeThere = policy.ModeShadow
		if !r.isOff {
			r.comment(ofRule, r.terms.Limit.At, "The rule has one counter for all requests, and enforce_percent chooses "+
				"among keys: it is shadow.")
		}
	}
}

// comment adds a comment once, as what it says may hold for many routes.
func (r *Rule) comment(kind noteKind, at source.Place, text string) {
	n := note{at.Problem(text), kind, r}
	if kind == ofLimiter {
		n.rule = nil // the note of each of its rules is the same
	}
	if !slices.Contains(r.comments, n) {
		r.comments = append(r.comments, n)
	}
}

// ExemptLimited exempts the requests that some rules limit, and reports whether any are left. Where it is unknown which
// those are, or the rules are not all, no match can select what is left. A rule has a comment that the terms lack if a
// policy compares less of its requests: then more are exempt than there.
func (t *Terms) ExemptLimited(rules []*Rule, areAll bool) (hasAny bool) {
	var limited []request.Match
	isKnown := areAll
	comparesLess := false
	isNew := func(comment string) bool { return !slices.Contains(t.Requests.Comments(), comment) }
	for _, r := range rules {
		switch m, ok := t.limitedBy(r); {
		case !ok:
			isKnown = false
		case len(m) == 0: // the rule limits all of them
			return false
		default:
			limited = append(limited, m)
			comparesLess = comparesLess || slices.ContainsFunc(r.terms.Requests.Comments(), isNew)
		}
	}
	t.Requests.ExemptMatches(limited...)
	if comparesLess {
		t.Requests.Comment("It may leave out more requests than there, because a policy compares less of what another rule " +
			"matches.")
	}
	if !isKnown {
		t.Requests.TurnOff(request.NoMatch("they are those that no other rule limits"))
	}
	return true
}

// limitedBy is a match for those of the terms' requests that a rule of the same limiter limits. It is not ok where no
// match can say which those are.
//
//	the rule                                           the match
//	paths: [/a*], exempt: /a/b, as the terms exempt    paths: [/a*]
//	paths: [/a*], exempt: /a/b, as they do not         not ok
//	headers: {x-user: a}                               headers: {x-user: a}
//	methods: [GET], as the terms have                  all of their requests
//	key: [{header: x-user}]                            headers: {x-user: "*"}
//	key: the connection                                all of their requests
//	key: a query parameter, a cookie or a property     not ok: no match asks for these
//	lets some keys pass by an override                 not ok
//	is off, as a policy cannot say it                  not ok
func (t *Terms) limitedBy(r *Rule) (m request.Match, ok bool) {
	isLeft := func(exempt request.Match) bool { return !t.Requests.HasExempt(exempt) }
	if r.isOff || slices.ContainsFunc(r.terms.Requests.Exempt(), isLeft) ||
		slices.ContainsFunc(r.terms.Overrides, Override.isUnlimited) {
		return nil, false
	}
	limited := r.terms.Requests
	for _, p := range r.terms.Key {
		switch p.Kind {
		case request.KindHeader:
			if limited.Of(p) == nil {
				limited.Require(p.Value(), request.Present)
			}
		case request.KindProperty:
			if !p.Is(request.ConnectionID) { // each request has a connection
				return nil, false
			}
		case request.KindQuery, request.KindCookie:
			return nil, false
		case request.KindClientIP, request.KindPath, request.KindMethod, request.KindHost: // no request lacks these
		}
	}
	m, ok = limited.Match()
	ofTerms, _ := t.Requests.Match() // also if they are off: it has only conditions of theirs
	return m.WithoutConditionsOf(ofTerms), ok
}

// Limit is one limit of a configuration. Several rules may come of it.
type Limit struct {
	Numbers
	Shadow          bool // it denies nothing
	request.Remarks      // of its rules
	At              source.Place
}

// Numbers are what a limit allows. Windowed, TokenBucket and Concurrency make them.
type Numbers struct {
	algorithm algorithm
	Requests  uint64
	Per       string
	Burst     uint64
}

// algorithm is how a limit counts, as a policy names it.
type algorithm string

const (
	windows     algorithm = "" // the default of policies
	tokenBucket algorithm = "token_bucket"
	concurrency algorithm = "concurrency"
)

// Windowed counts requests in windows of time: 5 per minute.
func Windowed(requests uint64, per string) Numbers { return Numbers{Requests: requests, Per: per} }

// TokenBucket has at most burst tokens, and gets new ones at a rate: 5 per 1m.
func TokenBucket(requests uint64, per string, burst uint64) Numbers {
	return Numbers{algorithm: tokenBucket, Requests: requests, Per: per, Burst: burst}
}

// Concurrency is how many requests may run at once.
func Concurrency(requests uint64) Numbers {
	return Numbers{algorithm: concurrency, Requests: requests}
}

// isWindowed reports whether requests are counted in windows of time.
func (n Numbers) isWindowed() bool { return n.algorithm == windows }

// asLimits are the numbers as a rule's limits.
func (n Numbers) asLimits() []any {
	switch {
	case n.isWindowed():
		return []any{strconv.FormatUint(n.Requests, 10) + "/" + n.Per}
	case n.algorithm == concurrency:
		return []any{n.Requests}
	case n.Burst == n.Requests:
		return []any{limitText{n.Requests, n.Per, nil}}
	}
	return []any{limitText{n.Requests, n.Per, &n.Burst}}
}

type limitText struct {
	Requests uint64  `yaml:"requests"`
	Per      string  `yaml:"per"`
	Burst    *uint64 `yaml:"burst,omitempty"`
}

// IsOfClass reports whether one rule can have both limits: they have one window and mode.
func (l *Limit) IsOfClass(other *Limit) bool {
	return l.algorithm == other.algorithm && l.Per == other.Per && l.Shadow == other.Shadow
}

// Override gives keys other numbers; without a limit they are unlimited.
type Override struct {
	Patterns []string
	Limit    *Limit
}

func (o Override) isUnlimited() bool { return o.Limit == nil }

// same reports whether two overrides give the same keys the same numbers.
func (o Override) same(other Override) bool {
	return slices.Equal(o.Patterns, other.Patterns) && o.isUnlimited() == other.isUnlimited() &&
		(o.isUnlimited() || o.Limit.Numbers == other.Limit.Numbers)
}

// MarshalYAML writes the override on a line.
func (o Override) MarshalYAML() (any, error) {
	text := struct {
		Key       []string `yaml:"key"`
		Limits    []any    `yaml:"limits,omitempty"`
		Unlimited bool     `yaml:"unlimited,omitempty"`
	}{Key: o.Patterns, Unlimited: o.isUnlimited()}
	if !o.isUnlimited() {
		text.Limits = o.Limit.asLimits()
	}
	return request.Flow(text), nil
}

// Response is what a denied request gets.
type Response struct {
	Status  uint32            `yaml:"status,omitempty"`
	Headers map[string]string `yaml:"headers,omitempty"`
}

// Clip makes text fit for a rule's name: printable, without space at its ends,
// at most size bytes long.
func Clip(text string, size int) string {
	return printable.Cut(strings.TrimSpace(printable.Text(text)), size)
}
