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
	index   Index
	request request.Request
	tooLong bool // a value of the request was too long for an expression in exempt
}

// Rule is a compiled policy.Rule.
type Rule struct {
	decide.Rule
	match  Match
	exempt []Match
	always bool // every request is for the rule
	key    []KeyPart
	cost   Costs
}

// New compiles the rules of a policy, without their sources of units.
func New(p *policy.Policy, source request.Source) *Rules {
	of := &Rules{request: request.New(source)}
	of.exempt = compileAll(&of.request, p.Exempt)
	of.List = make([]Rule, 0, len(p.Rules))
	for i := range p.Rules {
		if r := &p.Rules[i]; r.Mode != policy.ModeOff {
			of.List = append(of.List, compileRule(&of.request, p, r))
		}
	}
	matches := make([]*Match, len(of.List))
	for i := range of.List {
		matches[i] = &of.List[i].match
	}
	of.index = NewIndex(matches)
	return of
}

func compileRule(req *request.Request, p *policy.Policy, r *policy.Rule) Rule {
	out := Rule{
		Rule: decide.NewRule(p, r), match: Compile(req, &r.Match, false), exempt: compileAll(req, r.Exempt),
		key: CompileKey(req, r.Key), cost: CompileCosts(req, r),
	}
	out.always = out.match.IsEmpty() && len(out.exempt) == 0
	return out
}

func compileAll(req *request.Request, list []policy.Match) (exempt []Match) {
	for i := range list {
		exempt = append(exempt, Compile(req, &list[i], true))
	}
	return exempt
}

func anyHolds(list []Match, req *request.Request) bool {
	for i := range list {
		if list[i].Holds(req) {
			return true
		}
	}
	return false
}

// Begin begins a verdict with a subject for each rule that the request is for, which the
// source is at.
func (of *Rules) Begin(v *decide.Verdict) {
	v.Begin()
	of.request.Begin()
	if len(of.exempt) > 0 { // a value that was too long for that is counted with the rules
		of.request.TooLong = false
		v.Exempt = anyHolds(of.exempt, &of.request)
		if of.tooLong = of.request.TooLong; v.Exempt {
			return
		}
	}
	set := of.index.Find(&of.request)
	if set == nil {
		for i := range of.List {
			of.add(v, &of.List[i])
		}
		return
	}
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			of.add(v, &of.List[w*64+bits.TrailingZeros64(word)])
		}
	}
}

// add adds a subject if the request is for the rule.
func (of *Rules) add(v *decide.Verdict, r *Rule) {
	req := &of.request
	req.TooLong = of.tooLong
	s := v.Next()
	s.TooLong = false
	applies := (r.always || r.match.Holds(req) && !anyHolds(r.exempt, req)) && r.subject(s, req)
	if s.TooLong = s.TooLong || req.TooLong; s.TooLong {
		r.Metrics.TooLong++
	}
	if applies {
		v.Add()
	}
}

// subject reads key and cost from the request, and reports whether the rule applies.
func (r *Rule) subject(s *decide.Subject, req *request.Request) bool {
	complete := ReadKey(&s.Key, r.key, req)
	if !complete && r.Policy.MissingKey == policy.MissingSkip {
		return false
	}
	if s.Cost, s.CostUnreadable = r.cost.Read(req); s.CostUnreadable {
		r.Metrics.CostUnreadable++
	}
	s.Begin(&r.Rule)
	if !complete && r.Policy.MissingKey == policy.MissingDeny {
		s.LackKey()
	}
	return true
}
