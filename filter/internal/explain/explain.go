// Package explain says what the policy makes of a request that somebody describes, rule by
// rule and in words.
//
// Its invariant: it counts nothing and asks nobody. A clone of the engine decides on a dry
// run of the request, whose writes are thrown away.
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

// Explain appends as JSON, an answer.Explanation, what the policy would make of a request
// now.
func Explain(b []byte, e *engine.Engine, proxy engine.Host, r *Request) []byte {
	now := proxy.Now()
	v := e.Clone(newDryRun(r, proxy, now)).Decide()
	// Rules that share a counter see each other's hits in v, but not here.
	before := e.Clone(newDryRun(r, proxy, now)).Peek().Subjects
	dry := newDryRun(r, proxy, now)
	unmatched := request.New(dry)
	unmatched.Begin()

	rules := e.Policy().Rules
	x := result.Explanation{Allowed: &v.Allowed, Pending: v.Pending, Rules: make([]result.ExplainedRule, len(rules))}
	if !v.Allowed {
		x.DeniedBy, x.RetryNs = v.DeniedBy().Name, &v.RetryNs
	}
	subjects, certain := v.Subjects, ""
	for i := range rules {
		p := &rules[i]
		decided := len(subjects) > 0 && subjects[0].Rule.Policy == p
		outcome, why, missed := dry.unmatched(e.Policy(), p, &unmatched)
		switch {
		case len(missed) > 0:
			x.Rules[i] = result.ExplainedRule{Rule: p.Name, Outcome: result.NotKnown, Why: "the description does not give " + strings.Join(missed, ", ")}
			dependsOn(&x, p, missed)
		case decided:
			open := dry.openLimits(subjects[0], &unmatched)
			dependsOn(&x, p, open)
			if a := subjects[0]; certain == "" && !a.Allowed && !a.Shadow && len(open) == 0 {
				certain = p.Name
			}
			x.Rules[i] = matched(subjects[0])
			x.Rules[i].Windows, x.Rules[i].Lease = respond.Windows(before[0], now), lease.Of(before[0])
			x.Rules[i].Held, x.Rules[i].BodyAssumed = respond.Held(before[0]), r.bodyAssumed(p)
		default:
			x.Rules[i] = result.ExplainedRule{Rule: p.Name, Outcome: outcome, Why: why}
		}
		if r.Keys && p.Mode != policy.ModeOff {
			sayKey(&x.Rules[i], e, p, dry, &unmatched)
		}
		if decided {
			subjects, before = subjects[1:], before[1:]
		}
	}
	if len(x.DependsOn) > 0 { // of which the verdict took for granted that the request lacks it
		x.Allowed, x.DeniedBy, x.RetryNs = nil, certain, nil
		if certain != "" {
			x.Allowed = &v.Allowed
		}
	}
	return x.Append(b)
}

// dependsOn notes what the rule's verdict depends on and the description leaves open.
func dependsOn(x *result.Explanation, p *policy.Rule, open []string) {
	for _, name := range open {
		if p.Mode != policy.ModeShadow && !slices.Contains(x.DependsOn, name) {
			x.DependsOn = append(x.DependsOn, name)
		}
	}
}

// The outcomes of a rule that did not decide. One that did has answer.Matches.
const (
	outcomeNoMatch = "no_match" // a condition of its match does not hold
	outcomeOff     = "off"      // its mode
)

// matched explains a rule that decided, but for its windows.
func matched(a *decide.Subject) result.ExplainedRule {
	p := a.Rule.Policy
	r := result.ExplainedRule{
		Rule: p.Name, Outcome: result.Matches, Key: make([]result.KeyPart, len(a.Key.Parts)), Cost: &a.Cost,
		CostUnreadable: a.CostUnreadable, TooLong: a.TooLong, Unlimited: a.Unlimited, Mode: respond.Mode(a), Allowed: &a.Allowed, Pending: a.Outcome == decide.Pending, Reason: a.Reason(),
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

// unmatched says why a rule did not decide, if it did not, or else names what the description
// leaves open of what it decides by: the client's address, which conditions may look at, and
// parts of the key, of a first_of those before the first that the request has. A part that
// the request lacks for certain decides what becomes of the key.
func (d *dryRun) unmatched(of *policy.Policy, p *policy.Rule, r *request.Request) (outcome, why string, missed []string) {
	if p.Mode == policy.ModeOff {
		return outcomeOff, "mode: the rule is off", nil
	}
	r.Begin()
	d.missed = false
	fails := failing(&p.Match, r)
	surely := fails != "" && !d.missed
	exempt, all := exemption(p.Exempt, r), exemption(of.Exempt, r)
	switch {
	case all != "":
		return result.Exempted, "the policy's " + all, nil
	case surely:
		return outcomeNoMatch, fails, nil
	case exempt != "":
		return result.Exempted, exempt, nil
	}
	if d.missed {
		missed = []string{respond.PartName(&policy.KeyPart{Kind: policy.KeyClientIP})}
	}
	if fails != "" {
		return "", "", missed
	}
	ofConditions := missed
	for i := range p.Key {
		present, open := d.readsPart(&p.Key[i], r)
		switch {
		case present || len(open) > 0 || p.MissingKey == policy.MissingShare:
			for _, name := range open {
				if !slices.Contains(missed, name) {
					missed = append(missed, name)
				}
			}
		case p.MissingKey == policy.MissingSkip:
			return result.LacksKey, "missing_key: the request has no " + respond.PartName(&p.Key[i]) + ", and missing_key is " + string(p.MissingKey), nil
		default:
			return "", "", ofConditions
		}
	}
	return outcomeNoMatch, unexplained, missed
}

// openLimits names what says the subject's limits and is left open. The defaults stand in
// for it.
func (d *dryRun) openLimits(a *decide.Subject, r *request.Request) (open []string) {
	p := a.Rule.Policy
	for i := range p.Limits {
		if from := p.Limits[i].From; from != nil && a.Rule.Subjects.IsSaid(&a.Subject) {
			_, missed := d.readsPart(&from.Part, r)
			open = append(open, missed...)
		}
	}
	return open
}

// readsPart reports whether the request has a part of a key, and names what had to be known
// for that and is left open.
func (d *dryRun) readsPart(part *policy.KeyPart, r *request.Request) (present bool, open []string) {
	choices := part.Of
	if part.Kind != policy.KeyFirstOf {
		choices = []policy.KeyPart{*part}
	}
	var k policy.Key
	for i := 0; i < len(choices) && !present; i++ {
		r.Begin()
		d.missed = false
		present = rules.ReadKey(&k, rules.CompileKey(r, choices[i:i+1]), r)
		if d.missed {
			open = append(open, respond.PartName(&choices[i]))
		}
	}
	return present, open
}

// readKey reads the rule's key, and says why no counter has it, if none has.
func readKey(key *policy.Key, p *policy.Rule, r *request.Request) (lacks string) {
	rules.ReadKey(key, rules.CompileKey(r, p.Key), r)
	for i := range key.Parts {
		if !key.Parts[i].Present && p.MissingKey != policy.MissingShare {
			return "the request has no " + respond.PartName(&p.Key[i]) + ", and missing_key is " + string(p.MissingKey)
		}
	}
	return ""
}

// exemption says which exemption holds, "" if none does.
func exemption(list []policy.Match, r *request.Request) string {
	for i := range list {
		if m := rules.Compile(r, &list[i], true); m.Holds(r) {
			return "exempt[" + strconv.Itoa(i) + "] holds"
		}
	}
	return ""
}

// unexplained stands for a condition that predicates has no words for. A test
// says that there is none.
const unexplained = "match: some condition does not hold"

// keyPart hides credentials.
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
