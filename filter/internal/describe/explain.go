package describe

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/match"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Explain appends, as one JSON object, what the policy would make of a request
// now. It counts nothing: a clone of the engine decides, and its writes are thrown
// away. Times are in nanoseconds:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[
//	 {"rule":"r","outcome":"matches","key":[{"part":"header x-user-id","value":"alice"}],
//	  "cost":1,"override":{"index":0,"key":["gold-*"]},"mode":"enforced","allowed":false,
//	  "reason":"limit","windows":[{"limit":10,"per_ns":1000,"used":10,"remaining":0,"reset_ns":5}]},
//	 {"rule":"s","outcome":"no_match","why":"methods: POST is not one of GET, HEAD"}]}
//
// Every rule of the policy is there, in its order. windows are the usage before
// the request; a key part that the request lacks has "missing" in place of a
// value, a credential "hidden". "too_long":true says that a value was too long
// for a regular expression, and counted against the client.
func Explain(b []byte, e *engine.Engine, proxy engine.Host, r *Request) []byte {
	now := proxy.Now()
	v := e.Clone(newDryRun(r, proxy, now)).Decide()
	// Rules that share a counter see each other's hits in v, but not here.
	before := e.Clone(newDryRun(r, proxy, now)).Peek().Attempts
	unmatched := request.New(newDryRun(r, proxy, now))
	unmatched.Begin()

	b = append(appendOutcome(b, v), `,"rules":[`...)
	attempts := v.Attempts
	for i := range e.Policy().Rules {
		if i > 0 {
			b = append(b, ',')
		}
		p := &e.Policy().Rules[i]
		b = policy.AppendString(append(b, `{"rule":`...), p.Name)
		if len(attempts) > 0 && attempts[0].Rule() == p {
			b = appendMatched(b, attempts[0])
			b = appendWindows(b, before[0], now)
			attempts, before = attempts[1:], before[1:]
		} else {
			outcome, why := whyUnmatched(p, &unmatched)
			b = append(append(append(b, `,"outcome":"`...), outcome...), '"')
			b = policy.AppendString(append(b, `,"why":`...), why)
		}
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// The outcomes of a rule for a request.
const (
	outcomeMatches = "matches"  // it decided
	outcomeNoMatch = "no_match" // a condition of its match does not hold
	outcomeExempt  = "exempt"   // an entry of exempt holds
	outcomeNoKey   = "no_key"   // the request lacks a key part, and missing_key is skip
	outcomeOff     = "off"      // its mode
)

// appendMatched describes the decision of a rule that matched.
func appendMatched(b []byte, a *engine.Attempt) []byte {
	p := a.Rule()
	b = append(b, `,"outcome":"`+outcomeMatches+`","key":[`...)
	for i := range a.Key.Parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendKeyPart(b, &p.Key[i], &a.Key.Parts[i])
	}
	b = strconv.AppendUint(append(b, `],"cost":`...), uint64(a.Cost), 10)
	if a.TooLong {
		b = append(b, `,"too_long":true`...)
	}
	if a.Override >= 0 {
		b = strconv.AppendInt(append(b, `,"override":{"index":`...), int64(a.Override), 10)
		b = append(b, `,"key":[`...)
		for i, pattern := range p.Overrides[a.Override].Key {
			if i > 0 {
				b = append(b, ',')
			}
			b = policy.AppendString(b, notation(pattern))
		}
		b = append(b, "]}"...)
	}
	if a.Unlimited {
		b = append(b, `,"unlimited":true`...)
	}
	return appendDecision(b, a)
}

// whyUnmatched returns why a rule did not decide.
func whyUnmatched(p *policy.Rule, r *request.Request) (outcome, why string) {
	if p.Mode == policy.ModeOff {
		return outcomeOff, "mode: the rule is off"
	}
	if why := failing(&p.Match, r); why != "" {
		return outcomeNoMatch, why
	}
	for i := range p.Exempt {
		if exempt := match.Compile(r, &p.Exempt[i], true); exempt.Holds(r) {
			return outcomeExempt, "exempt[" + strconv.Itoa(i) + "] holds"
		}
	}
	var key match.Key
	key.Read(match.CompileKey(r, p.Key), r)
	for i := range key.Parts {
		if !key.Parts[i].Present {
			return outcomeNoKey, "missing_key: the request has no " + partName(&p.Key[i]) +
				", and missing_key is " + string(p.MissingKey)
		}
	}
	return outcomeNoMatch, unexplained
}

// unexplained stands for a condition that predicates has no words for. A test
// says that there is none.
const unexplained = "match: some condition does not hold"

func appendKeyPart(b []byte, k *policy.KeyPart, v *match.Value) []byte {
	b = policy.AppendString(append(b, `{"part":`...), partName(k))
	switch {
	case !v.Present:
		return append(b, `,"missing":true}`...)
	case k.Kind == policy.KeyCookie, k.Kind == policy.KeyHeader && isCredential(k.Name),
		strings.HasPrefix(v.Label, "cookie:"), isCredential(strings.TrimPrefix(v.Label, "header:")):
		return append(b, `,"hidden":true}`...)
	}
	return append(policy.AppendString(append(b, `,"value":`...), v.Whole()), '}')
}

// partName names a key part in words, or as KeyDefinition does.
func partName(k *policy.KeyPart) string {
	switch k.Kind {
	case policy.KeyHeader:
		return "header " + k.Name
	case policy.KeyClientIP:
		return "client_ip"
	case policy.KeyPath:
		if k.Segment > 0 {
			return "path segment " + strconv.Itoa(k.Segment)
		}
		return "path"
	case policy.KeyQuery:
		return "query " + k.Name
	case policy.KeyCookie:
		return "cookie " + k.Name
	default:
		return k.Label()
	}
}
