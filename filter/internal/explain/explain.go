// Package explain says in words what the policy makes of a request that somebody describes,
// rule by rule.
//
// Its invariant: it counts nothing and asks no service. A clone of the engine decides on a dry
// run of the request, whose writes are thrown away. Nothing on the way of a request may import
// it.
//
// request.go reads the description, and dryrun.go hands it to the engine as if a proxy had it. This file
// decides and says how each rule ends, key.go by which key, and predicates.go which condition fails.
package explain

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Explain appends, as JSON of a result.Explanation, what the policy would make of the request
// now.
func Explain(b []byte, e *engine.Engine, proxy engine.Host, r *Request) []byte {
	now := proxy.Now()
	// The first dry run says what all rules together decide.
	verdict := e.Clone(newDryRun(r, proxy, now)).Decide()
	// The second says how the windows are before the request: in the verdict, rules that share a
	// counter already see each other's hits.
	look := e.Clone(newDryRun(r, proxy, now)).Peek()
	// The third is read for conditions and keys, and notes what the description leaves open.
	dry := newDryRun(r, proxy, now)
	x := explainer{engine: e, described: r, dry: dry, request: rules.NewRequest(dry), now: now}
	x.result.Pending, x.result.IsUsage = verdict.Pending, verdict.IsLook
	runs := ruleRuns(e.Policy().Rules, verdict.Subjects, look.Subjects)
	x.result.Rules = make([]result.ExplainedRule, len(runs))
	for i := range runs {
		out, p := &x.result.Rules[i], runs[i].policy
		x.rule(out, &runs[i])
		if r.Keys && p.Mode != policy.ModeOff {
			x.addKey(out, p)
		}
	}
	x.conclude(verdict)
	return x.result.Append(b)
}

// ruleRun is a rule, and what the dry runs say of it.
type ruleRun struct {
	policy  *policy.Rule
	subject *decide.Subject // in the verdict, nil if the rule does not decide
	before  *decide.Subject // the same one, before any rule has counted the request
}

// ruleRuns returns all rules with their subjects, which are in the order of the rules.
func ruleRuns(list []policy.Rule, subjects, before []*decide.Subject) []ruleRun {
	runs := make([]ruleRun, len(list))
	next := 0 // of the subjects
	for i := range list {
		runs[i].policy = &list[i]
		if next < len(subjects) && subjects[next].Rule.Policy == &list[i] {
			runs[i].subject, runs[i].before = subjects[next], before[next]
			next++
		}
	}
	return runs
}

// explainer explains one request.
type explainer struct {
	engine    *engine.Engine
	described *Request
	dry       *dryRun
	request   rules.Request // reads dry, for conditions and keys
	now       int64
	result    result.Explanation
	deniesAll string // the first rule that denies, whatever the description leaves open
}

// conclude says what all rules together decide. If that depends on what the description leaves open, it says
// only what is certain: the verdict was made as if the request lacked that.
func (x *explainer) conclude(v *decide.Verdict) {
	isCertain := len(x.result.DependsOn) == 0
	if isCertain || x.deniesAll != "" {
		x.result.Allowed = &v.Allowed
	}
	switch {
	case !isCertain:
		x.result.DeniedBy = x.deniesAll
	case !v.Allowed:
		x.result.DeniedBy = v.DeniedBy().Name
		x.result.RetryNs = &v.RetryNs
	}
}

// rule explains a rule.
func (x *explainer) rule(out *result.ExplainedRule, of *ruleRun) {
	p := of.policy
	out.Rule = p.Name
	switch {
	case p.Mode == policy.ModeOff:
		out.Outcome, out.Why = outcomeOff, "mode: the rule is off"
		return
	case of.subject == nil && x.result.IsUsage:
		out.Outcome, out.Why = outcomeNoMatch, whyNotNamed
		return
	}
	switch not := x.whyNot(p); {
	case len(not.open) > 0:
		x.dependOn(p, not.open)
		out.Outcome, out.Why = result.NotKnown, notGiven+strings.Join(not.open, ", ")
	case of.subject != nil:
		x.decided(out, of)
	default:
		out.Outcome, out.Why = not.outcome, not.why
		out.Failing, out.Wanted = not.failing, not.wanted
	}
}

// Outcomes of a rule beside those of package result. All of them are:
//
//	matches    the rule decides
//	not_known  it may decide: the description leaves open whether it does, or by which key
//	off        its mode is off
//	exempt     an entry of exempt holds, of the rule or of the whole policy
//	no_match   a condition of its match does not hold
//	no_key     the request lacks a part of its key, and missing_key is skip
const (
	outcomeNoMatch = "no_match"
	outcomeOff     = "off"
)

// whyNotNamed is why a rule does not decide about a client that asks for its usage, whatever else holds.
const whyNotNamed = "usage: the proxy answers this request, and only rules that name its path in match.paths count it"

// decided explains a rule with a subject in the verdict.
func (x *explainer) decided(out *result.ExplainedRule, of *ruleRun) {
	p, s := of.policy, of.subject
	open := append(x.openLimits(s), x.openCost(p)...)
	x.dependOn(p, open)
	if x.deniesAll == "" && s.Denies() && !s.Shadow && len(open) == 0 {
		x.deniesAll = p.Name
	}
	*out = matched(s)
	out.Windows = respond.Windows(of.before, x.now)
	out.Lease = lease.LeaseOf(of.before)
	out.Held = respond.Held(of.before)
	if p.Settle != nil && p.Settle.To == policy.SettlePrice {
		out.Charges = string(p.Settle.To)
	}
	out.BlockedNs = of.before.BlockedNs(x.now)
	out.BodyAssumed = x.described.bodyAssumed(p)
}

const notGiven = "the description does not give "

// dependOn adds to what the verdict depends on and the description leaves open. A shadow rule
// changes no verdict.
func (x *explainer) dependOn(p *policy.Rule, open []string) {
	for _, name := range open {
		if p.Mode != policy.ModeShadow && !slices.Contains(x.result.DependsOn, name) {
			x.result.DependsOn = append(x.result.DependsOn, name)
		}
	}
}

// matched explains what the rule of a subject decided, but for its windows.
func matched(s *decide.Subject) result.ExplainedRule {
	p, allowed := s.Rule.Policy, !s.Denies()
	r := result.ExplainedRule{
		Rule:           p.Name,
		Outcome:        result.Matches,
		Key:            make([]result.KeyPart, len(s.Key.Parts)),
		Cost:           &s.Cost,
		CostUnreadable: s.CostUnreadable,
		TooLong:        s.TooLong,
		Unlimited:      s.Unlimited,
		Mode:           respond.Mode(s),
		Allowed:        &allowed,
		Pending:        s.IsPending(),
		Reason:         s.Reason(),
	}
	if r.Pending { // the explanation says what the quota service would be asked, also if another rule denies
		r.Reason = ""
	}
	for i := range s.Key.Parts {
		r.Key[i] = keyPart(&p.Key[i], &s.Key.Parts[i])
	}
	if s.Override >= 0 {
		r.Override = &result.Override{Index: s.Override, Name: s.OverrideName()}
		for _, pattern := range p.Overrides[s.Override].Key {
			r.Override.Key = append(r.Override.Key, notation(pattern))
		}
	}
	return r
}

// undecided is why a rule does not decide, or what leaves open whether it does.
type undecided struct {
	outcome, why    string
	failing, wanted string   // of a condition, see result.ExplainedRule
	open            []string // what it may decide by, and the description does not give
}

// whyNot says why a rule does not decide, if it does not. The description can leave open the client's address,
// if a condition looks at that, and parts of the key.
func (x *explainer) whyNot(p *policy.Rule) undecided {
	x.request.Begin()
	missed := x.dry.missed
	fails := failing(&p.Match, &x.request)
	matchIsOpen := x.dry.missed > missed
	exempt := exemption(p.Exempt, &x.request)
	allExempt := exemption(x.engine.Policy().Exempt, &x.request)
	switch {
	case allExempt != "":
		return undecided{outcome: result.Exempted, why: "the policy's " + allExempt}
	case fails != nil && !matchIsOpen:
		return undecided{outcome: outcomeNoMatch, why: fails.why, failing: fails.name, wanted: fails.wanted}
	case exempt != "":
		return undecided{outcome: result.Exempted, why: exempt}
	}
	open := x.openAddress(missed)
	if fails != nil {
		return undecided{open: open}
	}
	lacks, open := x.keyVerdict(p, open)
	if lacks != "" {
		return undecided{outcome: result.LacksKey, why: "missing_key: " + lacks}
	}
	return undecided{outcome: outcomeNoMatch, why: unexplained, open: open}
}

// unexplained stands for a condition that predicates has no words for. A test shows that there
// is none.
const unexplained = "match: some condition does not hold"

// exemption returns which exemption holds, "" if none does.
func exemption(list []policy.Match, r *rules.Request) string {
	for i := range list {
		m := rules.Compile(&r.Request, &list[i], true)
		if m.Holds(r) {
			return "exempt[" + strconv.Itoa(i) + "] holds"
		}
	}
	return ""
}

// openLimits names what would say the subject's limits if the description gave it. The subject
// has the default of such a limit.
func (x *explainer) openLimits(s *decide.Subject) (open []string) {
	p := s.Rule.Policy
	for i := range p.Limits {
		from := p.Limits[i].Requested
		if from != nil && s.Rule.Finder.IsRequested(&s.Subject) {
			_, openOfPart := x.readPart(&from.Part)
			open = append(open, openOfPart...)
		}
	}
	return open
}

// openCost names what would say the request's cost if the description gave it: the match of a cost may ask for
// the client's address.
func (x *explainer) openCost(p *policy.Rule) []string {
	x.request.Begin()
	missed := x.dry.missed
	rules.CompileCosts(&x.request.Request, p).Read(&x.request)
	return x.openAddress(missed)
}

// openAddress names the client's address if a condition has asked for it since so much was missed. Conditions
// ask for nothing else that a description can leave open.
func (x *explainer) openAddress(missed int) []string {
	if x.dry.missed == missed {
		return nil
	}
	return []string{respond.PartName(&policy.KeyPart{Kind: policy.KeyClientIP})}
}
