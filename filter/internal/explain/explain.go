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
	// The first dry run says what all rules together decide.
	verdict := e.Clone(newDryRun(r, proxy, now)).Decide()
	// The second says how the windows are before the request: in the verdict, rules that share a
	// counter already see each other's hits.
	before := e.Clone(newDryRun(r, proxy, now)).Peek().Subjects
	// The third is read for conditions and keys, and notes what the description leaves open.
	dry := newDryRun(r, proxy, now)
	x := explainer{engine: e, described: r, dry: dry, request: request.New(dry), now: now}
	x.result.Allowed = &verdict.Allowed
	x.result.Pending, x.result.IsUsage = verdict.Pending, verdict.IsLook
	if !verdict.Allowed {
		x.result.DeniedBy = verdict.DeniedBy().Name
		x.result.RetryNs = &verdict.RetryNs
	}
	rules := e.Policy().Rules
	x.result.Rules = make([]result.ExplainedRule, len(rules))
	next := 0 // of the subjects, which are in the order of their rules
	for i := range rules {
		out := &x.result.Rules[i]
		var s, beforeAll *decide.Subject
		if next < len(verdict.Subjects) && verdict.Subjects[next].Rule.Policy == &rules[i] {
			s, beforeAll = verdict.Subjects[next], before[next]
			next++
		}
		var undecided result.ExplainedRule
		open := x.undecided(&undecided, &rules[i])
		if verdict.IsLook && s == nil && undecided.Outcome != outcomeOff {
			open = nil
			undecided = result.ExplainedRule{Rule: rules[i].Name, Outcome: outcomeNoMatch, Why: whyNotNamed}
		}
		switch {
		case len(open) > 0:
			x.notKnown(out, &rules[i], open)
		case s != nil:
			x.decided(out, s, beforeAll)
		default:
			*out = undecided
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

// decided explains a rule with a subject in the verdict. The subject before is the same one,
// as it is before any rule has counted the request.
func (x *explainer) decided(out *result.ExplainedRule, s, before *decide.Subject) {
	p := s.Rule.Policy
	open := x.openLimits(s)
	x.dependOn(p, open)
	if x.deniesAll == "" && !s.Allowed && !s.Shadow && len(open) == 0 {
		x.deniesAll = p.Name
	}
	*out = matched(s)
	out.Windows = respond.Windows(before, x.now)
	out.Lease = lease.LeaseOf(before)
	out.Held = respond.Held(before)
	if p.Settle != nil && p.Settle.To == policy.SettlePrice {
		out.Charges = string(p.Settle.To)
	}
	out.BlockedNs = before.BlockedNs(x.now)
	out.BodyAssumed = x.described.bodyAssumed(p)
}

// notKnown explains a rule that may decide or not: the description does not say.
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

// keepCertain removes from the verdict what depends on what the description leaves open: the verdict
// was made as if the request lacked that.
func (x *explainer) keepCertain(allowed *bool) {
	x.result.DeniedBy = x.deniesAll
	x.result.RetryNs = nil
	if x.deniesAll == "" {
		allowed = nil
	}
	x.result.Allowed = allowed
}

// matched explains what the rule of a subject decided, but for its windows.
func matched(s *decide.Subject) result.ExplainedRule {
	p := s.Rule.Policy
	r := result.ExplainedRule{
		Rule:           p.Name,
		Outcome:        result.Matches,
		Key:            make([]result.KeyPart, len(s.Key.Parts)),
		Cost:           &s.Cost,
		CostUnreadable: s.CostUnreadable,
		TooLong:        s.TooLong,
		Unlimited:      s.Unlimited,
		Mode:           respond.Mode(s),
		Allowed:        &s.Allowed,
		Pending:        s.Outcome == decide.Pending,
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

// undecided explains in out a rule as one that does not decide. If it may decide, open has the names of
// what it decides by and the description leaves open: the client's address, if a condition looks at
// it, and parts of the key.
func (x *explainer) undecided(out *result.ExplainedRule, p *policy.Rule) (open []string) {
	out.Rule = p.Name
	if p.Mode == policy.ModeOff {
		out.Outcome, out.Why = outcomeOff, "mode: the rule is off"
		return nil
	}
	x.beginReading()
	fails := failing(&p.Match, &x.request)
	matchIsOpen := x.dry.missed
	exempt := exemption(p.Exempt, &x.request)
	allExempt := exemption(x.engine.Policy().Exempt, &x.request)
	switch {
	case allExempt != "":
		out.Outcome, out.Why = result.Exempted, "the policy's "+allExempt
		return nil
	case fails != nil && !matchIsOpen:
		out.Outcome, out.Why = outcomeNoMatch, fails.why
		out.Failing, out.Wanted = fails.name, fails.wanted
		return nil
	case exempt != "":
		out.Outcome, out.Why = result.Exempted, exempt
		return nil
	}
	if x.dry.missed {
		open = []string{respond.PartName(&policy.KeyPart{Kind: policy.KeyClientIP})}
	}
	if fails != nil {
		return open
	}
	lacks, ofKey := x.keyVerdict(p, open)
	if lacks != "" {
		out.Outcome, out.Why = result.LacksKey, "missing_key: "+lacks
		return nil
	}
	out.Outcome, out.Why = outcomeNoMatch, unexplained
	return ofKey
}

// keyVerdict says by which part's lack the rule is skipped, "" if by none, and adds to open what the
// description leaves open of the key. A part that the request certainly lacks decides what becomes of
// the key, even if the description leaves other parts open.
func (x *explainer) keyVerdict(p *policy.Rule, ofConditions []string) (lacks string, open []string) {
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
			return lacksPart(p, i), nil
		default: // the rule denies: nothing else of the key matters
			return "", ofConditions
		}
	}
	return "", open
}

// unexplained stands for a condition that predicates has no words for. A test shows that there
// is none.
const unexplained = "match: some condition does not hold"

func lacksPart(p *policy.Rule, part int) string {
	return "the request has no " + respond.PartName(&p.Key[part]) + ", and missing_key is " + string(p.MissingKey)
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

// readPart reports whether the request has a part of a key, and names what the description
// would have to give to know that. For a first_of, these are the choices before the first one
// that the request has.
func (x *explainer) readPart(part *policy.KeyPart) (present bool, open []string) {
	choices := part.Of
	if part.Kind != policy.KeyFirstOf {
		choices = []policy.KeyPart{*part}
	}
	var k policy.Key
	for i := range choices {
		complete, isOpen := x.readParts(&k, choices[i:i+1])
		if isOpen {
			open = append(open, respond.PartName(&choices[i]))
		}
		if complete {
			return true, open
		}
	}
	return false, open
}

// readParts reads key parts. It reports whether the request has them all, and whether the
// description leaves open what was read.
func (x *explainer) readParts(key *policy.Key, parts []policy.KeyPart) (complete, isOpen bool) {
	x.beginReading()
	complete = rules.ReadKey(key, rules.CompileKey(&x.request, parts), &x.request)
	return complete, x.dry.missed
}

// beginReading makes the request be read anew. From then on dry.missed says whether something was
// read that the description leaves open.
func (x *explainer) beginReading() {
	x.request.Begin()
	x.dry.missed = false
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
	if _, isOpen := x.readParts(key, p.Key); isOpen {
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
