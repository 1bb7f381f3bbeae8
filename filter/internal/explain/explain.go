// Package explain says in words what the policy makes of a request that somebody describes,
// rule by rule.
//
// Its invariant: it counts nothing and asks no service. A clone of the engine decides on a dry
// run of the request, whose writes are thrown away. Nothing on the way of a request may import
// it.
package explain

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Explain appends, as JSON of a result.Explanation, what the policy would make of the request
// now.
func Explain(b []byte, e *engine.Engine, proxy engine.Host, r *Request) []byte {
	now := proxy.Now()
	verdict := e.Clone(newDryRun(r, proxy, now)).Decide()
	// The windows are told as they are before the request. In the verdict, rules that share a
	// counter already see each other's hits.
	before := e.Clone(newDryRun(r, proxy, now)).Peek().Subjects
	dry := newDryRun(r, proxy, now)
	x := explainer{engine: e, described: r, dry: dry, request: request.New(dry), now: now}
	x.result.Allowed = &verdict.Allowed
	x.result.Pending = verdict.Pending
	if !verdict.Allowed {
		x.result.DeniedBy = verdict.DeniedBy().Name
		x.result.RetryNs = &verdict.RetryNs
	}
	rules := e.Policy().Rules
	x.result.Rules = make([]result.ExplainedRule, len(rules))
	next := 0 // of the subjects, which are in the order of their rules
	for i := range rules {
		out := &x.result.Rules[i]
		if next < len(verdict.Subjects) && verdict.Subjects[next].Rule.Policy == &rules[i] {
			x.decided(out, &rules[i], verdict.Subjects[next], before[next])
			next++
		} else {
			x.undecided(out, &rules[i])
		}
		if r.Keys && rules[i].Mode != policy.ModeOff {
			x.addKey(out, &rules[i])
		}
	}
	if len(x.result.DependsOn) > 0 {
		x.keepCertain(&verdict.Allowed)
	}
	return x.result.Append(b)
}

// explainer explains one request.
type explainer struct {
	engine    *engine.Engine
	described *Request
	dry       *dryRun
	request   request.Request // reads dry, for conditions and keys
	now       int64
	result    result.Explanation
	deniesAll string // the first rule that denies, whatever the description leaves open
}

// The outcomes of a rule that did not decide. One that did has result.Matches.
const (
	outcomeNoMatch = "no_match" // a condition of its match does not hold
	outcomeOff     = "off"      // its mode
)

// reason is why a rule did not decide.
type reason struct{ outcome, why string }

// decided explains a rule with a subject in the verdict. The subject before is the same one,
// as it is before any rule has counted the request.
func (x *explainer) decided(out *result.ExplainedRule, p *policy.Rule, s, before *decide.Subject) {
	_, open := x.unmatched(p)
	if len(open) > 0 {
		x.notKnown(out, p, open)
		return
	}
	open = x.openLimits(s)
	x.dependOn(p, open)
	if x.deniesAll == "" && !s.Allowed && !s.Shadow && len(open) == 0 {
		x.deniesAll = p.Name
	}
	*out = matched(s)
	out.Windows = respond.Windows(before, x.now)
	out.Lease = lease.Of(before)
	out.Held = respond.Held(before)
	out.BodyAssumed = x.described.bodyAssumed(p)
}

// undecided explains a rule without a subject.
func (x *explainer) undecided(out *result.ExplainedRule, p *policy.Rule) {
	why, open := x.unmatched(p)
	if len(open) > 0 {
		x.notKnown(out, p, open)
		return
	}
	*out = result.ExplainedRule{Rule: p.Name, Outcome: why.outcome, Why: why.why}
}

// notKnown explains a rule of which the description does not say whether it decides.
func (x *explainer) notKnown(out *result.ExplainedRule, p *policy.Rule, open []string) {
	*out = result.ExplainedRule{Rule: p.Name, Outcome: result.NotKnown, Why: notGiven + strings.Join(open, ", ")}
	x.dependOn(p, open)
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

// keepCertain keeps of the verdict what does not depend on what the description leaves open:
// the verdict supposed that the request lacks that.
func (x *explainer) keepCertain(allowed *bool) {
	x.result.DeniedBy = x.deniesAll
	x.result.RetryNs = nil
	if x.deniesAll == "" {
		allowed = nil
	}
	x.result.Allowed = allowed
}

// matched explains what the rule of a subject decided, but for its windows.
func matched(a *decide.Subject) result.ExplainedRule {
	p := a.Rule.Policy
	r := result.ExplainedRule{
		Rule:           p.Name,
		Outcome:        result.Matches,
		Key:            make([]result.KeyPart, len(a.Key.Parts)),
		Cost:           &a.Cost,
		CostUnreadable: a.CostUnreadable,
		TooLong:        a.TooLong,
		Unlimited:      a.Unlimited,
		Mode:           respond.Mode(a),
		Allowed:        &a.Allowed,
		Pending:        a.Outcome == decide.Pending,
		Reason:         a.Reason(),
	}
	for i := range a.Key.Parts {
		r.Key[i] = keyPart(&p.Key[i], &a.Key.Parts[i])
	}
	if a.Override >= 0 {
		r.Override = &result.Override{Index: a.Override, Name: a.OverrideName()}
		for _, pattern := range p.Overrides[a.Override].Key {
			r.Override.Key = append(r.Override.Key, notation(pattern))
		}
	}
	return r
}

// unmatched returns why a rule does not decide. If it may decide, it names what the description
// leaves open of what the rule decides by: the client's address, which conditions may look at,
// and parts of the key.
func (x *explainer) unmatched(p *policy.Rule) (why reason, open []string) {
	if p.Mode == policy.ModeOff {
		return reason{outcomeOff, "mode: the rule is off"}, nil
	}
	x.begin()
	fails := failing(&p.Match, &x.request)
	failsSurely := fails != "" && !x.dry.missed
	exempt := exemption(p.Exempt, &x.request)
	exemptOfAll := exemption(x.engine.Policy().Exempt, &x.request)
	switch {
	case exemptOfAll != "":
		return reason{result.Exempted, "the policy's " + exemptOfAll}, nil
	case failsSurely:
		return reason{outcomeNoMatch, fails}, nil
	case exempt != "":
		return reason{result.Exempted, exempt}, nil
	}
	if x.dry.missed {
		open = []string{respond.PartName(&policy.KeyPart{Kind: policy.KeyClientIP})}
	}
	if fails != "" {
		return reason{}, open
	}
	return x.unkeyed(p, open)
}

// begin reads the request anew, to learn by dry.missed what the description leaves open.
func (x *explainer) begin() {
	x.request.Begin()
	x.dry.missed = false
}

// unkeyed is unmatched for the rule's key. A part that the request certainly lacks decides what
// becomes of the key, whatever else the description leaves open of it.
func (x *explainer) unkeyed(p *policy.Rule, ofConditions []string) (why reason, open []string) {
	open = ofConditions
	for i := range p.Key {
		present, openOfPart := x.readPart(&p.Key[i])
		switch {
		case present || len(openOfPart) > 0 || p.MissingKey == policy.MissingShare:
			for _, name := range openOfPart {
				if !slices.Contains(open, name) {
					open = append(open, name)
				}
			}
		case p.MissingKey == policy.MissingSkip:
			return reason{result.LacksKey, "missing_key: " + lacksPart(p, i)}, nil
		default:
			return reason{}, ofConditions
		}
	}
	return reason{outcomeNoMatch, unexplained}, open
}

func lacksPart(p *policy.Rule, part int) string {
	return "the request has no " + respond.PartName(&p.Key[part]) + ", and missing_key is " + string(p.MissingKey)
}

// unexplained stands for a condition that predicates has no words for. A test shows that there
// is none.
const unexplained = "match: some condition does not hold"

// openLimits names what would say the subject's limits if the description gave it. The subject
// has the default of such a limit.
func (x *explainer) openLimits(s *decide.Subject) (open []string) {
	p := s.Rule.Policy
	for i := range p.Limits {
		from := p.Limits[i].From
		if from != nil && s.Rule.Subjects.IsSaid(&s.Subject) {
			_, openOfPart := x.readPart(&from.Part)
			open = append(open, openOfPart...)
		}
	}
	return open
}

// readPart reports whether the request has a part of a key, and names what the description
// would have to give to know that. Of a first_of, these are the choices before the first one
// that the request has.
func (x *explainer) readPart(part *policy.KeyPart) (present bool, open []string) {
	choices := part.Of
	if part.Kind != policy.KeyFirstOf {
		choices = []policy.KeyPart{*part}
	}
	var k policy.Key
	for i := 0; i < len(choices) && !present; i++ {
		x.begin()
		present = rules.ReadKey(&k, rules.CompileKey(&x.request, choices[i:i+1]), &x.request)
		if x.dry.missed {
			open = append(open, respond.PartName(&choices[i]))
		}
	}
	return present, open
}

// addKey adds by which key the rule counts the request, or would if it applied, or else why it
// has none. It shows credentials too: whoever asks has described them. If the description leaves
// the cost open, it is the rule's least one, but at least 1: a cost of 0 is never denied, and so
// would not show whether the client is.
func (x *explainer) addKey(out *result.ExplainedRule, p *policy.Rule) {
	var key policy.Key
	out.NoKey = x.readKey(&key, p)
	if out.NoKey != "" {
		return
	}
	if out.Cost == nil || out.BodyAssumed != "" {
		least := max(p.LeastCost(), 1)
		out.Cost = &least
	}
	out.Key = make([]result.KeyPart, len(key.Parts))
	out.Hash = x.engine.DenialHash(&key)
	out.Common = true
	for i := range key.Parts {
		v := &key.Parts[i]
		out.Key[i] = keyPart(&p.Key[i], v)
		if v.Present {
			text := v.Whole()
			out.Key[i].Value = &text
			part := p.Key[i].Labeled(v.Label)
			out.Common = out.Common && !part.OfClient()
		}
	}
}

// readKey reads the rule's key, or returns why the request has none.
func (x *explainer) readKey(key *policy.Key, p *policy.Rule) (noKey string) {
	x.begin()
	rules.ReadKey(key, rules.CompileKey(&x.request, p.Key), &x.request)
	if x.dry.missed {
		for i := range p.Key {
			_, open := x.readPart(&p.Key[i])
			if len(open) > 0 {
				return notGiven + respond.PartName(&p.Key[i])
			}
		}
	}
	for i := range key.Parts {
		if !key.Parts[i].Present && p.MissingKey != policy.MissingShare {
			return lacksPart(p, i)
		}
	}
	return ""
}

// exemption returns which exemption holds, "" if none does.
func exemption(list []policy.Match, r *request.Request) string {
	for i := range list {
		m := rules.Compile(r, &list[i], true)
		if m.Holds(r) {
			return "exempt[" + strconv.Itoa(i) + "] holds"
		}
	}
	return ""
}

// keyPart explains one part of a key. It hides a credential.
func keyPart(k *policy.KeyPart, v *policy.Value) result.KeyPart {
	part := result.KeyPart{Part: respond.PartName(k)}
	switch {
	case !v.Present:
		part.Missing = true
	case k.Labeled(v.Label).HasCredential():
		part.Hidden = true
	default:
		text := v.Whole()
		part.Value = &text
	}
	return part
}
