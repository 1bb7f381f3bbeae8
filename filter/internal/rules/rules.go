// Package rules compiles a policy's rules, and finds those that apply to a request (Rules). Of
// each rule it compiles which requests it applies to (Match, Index), by which key it counts
// them (KeyPart), and how many units a request costs (Costs).
//
// Its invariant: a value that a client may spell in several ways, or that is too long to be
// read, counts against the client. It decides nothing, and must never import a source of units.
//
// The way of a request:
//
//	Rules.Match       rules.go      is the request exempt, or one for the client's usage (look.go)?
//	  Index.Find      index.go      which rules may match, by host and path?
//	  Match.Holds     match.go      for each of them: does it match, and no exemption of it?
//	  readSubject     rules.go      if so, its subject has
//	    ReadKey       key.go        a key
//	    Costs.Read    cost.go       a cost
//	    readLimits    requested.go  limits that the request says
package rules

import (
	"math/bits"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Rules are the rules of a policy that are not off.
type Rules struct {
	List []Rule

	exempt  []Match // of the whole policy
	looks   looks
	index   Index
	request Request
}

// Request is the request that rules ask about.
type Request struct {
	request.Request

	// tooLong says that a value was too long for a regular expression: Match.Holds sets it. Rules.Match clears it before
	// the policy's exempt is asked, and addSubject begins each rule with what that has found.
	tooLong bool
}

// NewRequest returns the source's request.
func NewRequest(source request.Source) Request { return Request{Request: request.New(source)} }

// Rule is a compiled policy.Rule.
type Rule struct {
	decide.Rule
	match  Match
	exempt []Match
	always bool  // the rule applies to every request
	look   *look // nil if clients cannot ask for their usage
	key    []KeyPart
	limits []requestedLimit
	cost   Costs
}

// New compiles the rules of a policy, without their sources of units.
func New(p *policy.Policy, source request.Source) *Rules {
	rs := &Rules{request: NewRequest(source)}
	rs.exempt = compileAll(&rs.request.Request, p.Exempt)
	rs.looks = compileLooks(rs.exempt, p)
	rs.List = make([]Rule, 0, len(p.Rules))
	for i := range p.Rules {
		if r := &p.Rules[i]; r.Mode != policy.ModeOff {
			rs.List = append(rs.List, compileRule(&rs.request.Request, p, r))
		}
	}
	matches := make([]*Match, len(rs.List))
	for i := range rs.List {
		matches[i] = &rs.List[i].match
	}
	rs.index = NewIndex(matches)
	return rs
}

func compileRule(req *request.Request, p *policy.Policy, r *policy.Rule) Rule {
	out := Rule{
		Rule:   decide.NewRule(p, r),
		match:  Compile(req, &r.Match, false),
		exempt: compileAll(req, r.Exempt),
		key:    CompileKey(req, r.Key),
		limits: compileRequested(req, r),
		cost:   CompileCosts(req, r),
	}
	out.always = out.match.IsEmpty() && len(out.exempt) == 0
	if p.Usage != nil {
		out.look = compileLook(&out, p.Usage.Path)
	}
	return out
}

func compileAll(req *request.Request, list []policy.Match) (exempt []Match) {
	for i := range list {
		exempt = append(exempt, Compile(req, &list[i], true))
	}
	return exempt
}

func anyHolds(list []Match, req *Request) bool {
	for i := range list {
		if list[i].Holds(req) {
			return true
		}
	}
	return false
}

// Match begins the verdict on the source's request, with a subject for each rule that applies
// to it.
func (rs *Rules) Match(v *decide.Verdict) {
	v.Begin()
	rs.request.Begin()
	v.IsLook = rs.looks.path != "" && rs.isLook()
	rs.request.tooLong = false
	v.Exempt = anyHolds(rs.exempt, &rs.request)
	if v.Exempt {
		return
	}
	exemptTooLong := rs.request.tooLong // which is counted at each rule
	if v.IsLook {
		rs.addSubjectsOfLook(v, exemptTooLong)
		return
	}
	set := rs.index.Find(&rs.request.Request)
	if set == nil {
		for i := range rs.List {
			rs.addSubject(v, &rs.List[i], exemptTooLong)
		}
		return
	}
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			rs.addSubject(v, &rs.List[w*64+bits.TrailingZeros64(word)], exemptTooLong)
		}
	}
}

// addSubject adds the rule's subject to the verdict if the rule applies to the request. exemptTooLong says that a value
// was too long for the policy's exempt.
func (rs *Rules) addSubject(v *decide.Verdict, r *Rule, exemptTooLong bool) {
	req := &rs.request
	req.tooLong = exemptTooLong
	keyTooLong := false // for an override
	if r.always || r.match.Holds(req) && !anyHolds(r.exempt, req) {
		if read, applies := r.readSubject(v.Next(), req); applies {
			keyTooLong = v.Add(&r.Rule, read).TooLong
		}
	}
	if req.tooLong || keyTooLong {
		r.Metrics.TooLong++
	}
}

// readSubject reads what the request says for the rule, and reports whether the rule applies.
func (r *Rule) readSubject(to *policy.Subject, req *Request) (read decide.Reading, applies bool) {
	complete := ReadKey(&to.Key, r.key, &req.Request)
	if !complete && r.Policy.MissingKey == policy.MissingSkip {
		return read, false
	}
	read.LacksKey = !complete && r.Policy.MissingKey == policy.MissingDeny
	read.Cost, read.CostUnreadable = r.cost.Read(req)
	if read.CostUnreadable {
		r.Metrics.CostUnreadable++
	}
	r.readLimits(to, &req.Request)
	read.TooLong = req.tooLong // for any match so far: of the policy, the rule, or a cost
	return read, true
}
