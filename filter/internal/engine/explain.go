package engine

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Explain appends, as one JSON object, what the policy would make of a request
// now, and counts nothing: the decision is Decide's own, on a copy of this
// engine whose writes nobody sees. Times are in nanoseconds:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[
//	 {"rule":"r","outcome":"matches","key":[{"part":"header x-user-id","value":"alice"}],
//	  "cost":1,"override":{"index":0,"key":["gold-*"]},"mode":"enforced","allowed":false,
//	  "reason":"limit","windows":[{"limit":10,"per_ns":1000,"used":10,"remaining":0,"reset_ns":5}]},
//	 {"rule":"s","outcome":"no_match","why":"methods: POST is not one of GET, HEAD"}]}
//
// Every rule of the policy is there, in its order. windows are what is used
// before the request; a part of the key that it lacks has "missing" in place of
// a value, and one that is a credential "hidden". "too_long":true says that a
// value was too long for a regular expression, and counted against the client.
func (e *Engine) Explain(b []byte, d *Described) []byte {
	x := e.apart(tell(d, e.host))
	v := x.Decide()
	before := e.apart(tell(d, e.host)) // the same once more, in which nothing has been decided
	b = strconv.AppendBool(append(b, `{"allowed":`...), v.Allowed)
	if !v.Allowed {
		b = policy.AppendString(append(b, `,"denied_by":`...), v.DeniedBy().Name)
		b = strconv.AppendInt(append(b, `,"retry_after_ns":`...), v.RetryNs, 10)
	}
	b = append(b, `,"rules":[`...)
	matched, rules := v.tries, before.rules
	for i := range e.policy.Rules {
		if i > 0 {
			b = append(b, ',')
		}
		p := &e.policy.Rules[i]
		b = policy.AppendString(append(b, `{"rule":`...), p.Name)
		switch {
		case len(rules) == 0 || rules[0].policy != p:
			b = appendUnmatched(b, outcomeOff, "mode: the rule is off")
		case len(matched) > 0 && matched[0].rule.policy == p:
			b = before.appendMatched(b, &rules[0], matched[0], v.Now)
			rules, matched = rules[1:], matched[1:]
		default:
			outcome, why := before.unmatched(&rules[0])
			b = appendUnmatched(b, outcome, why)
			rules = rules[1:]
		}
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// What a rule has to do with a request.
const (
	outcomeMatches = "matches"  // it decided
	outcomeNoMatch = "no_match" // a condition of its match does not hold
	outcomeExempt  = "exempt"   // an entry of exempt holds
	outcomeNoKey   = "no_key"   // the request lacks a part of the key, and missing_key is skip
	outcomeOff     = "off"      // its mode
)

// apart returns a copy of the engine for another host. Of what changes while
// requests are decided it shares with e only what the next one writes anew.
func (e *Engine) apart(host Host) *Engine {
	x := *e
	x.host, x.request = host, e.request.apart(host)
	x.tables = e.tables.On(host)
	x.rules = slices.Clone(e.rules)
	for i := range x.rules {
		r := &x.rules[i]
		r.metrics, r.spikes = Metrics{}, spikes{}
		if r.table != nil {
			r.table = x.tables.Counterpart(r.table)
		}
	}
	x.tries = nil
	return &x
}

// appendMatched tells what a rule that matched, as t, made of the request. r is
// the same rule of e, an engine in which the request has not been counted.
func (e *Engine) appendMatched(b []byte, r *rule, t *attempt, now int64) []byte {
	p := r.policy
	b = append(b, `,"outcome":"`+outcomeMatches+`","key":[`...)
	for i := range t.key.parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendPart(b, &p.Key[i], t.key.parts[i])
	}
	b = strconv.AppendUint(append(b, `],"cost":`...), uint64(t.cost), 10)
	if t.tooLong {
		b = append(b, `,"too_long":true`...)
	}
	if i := r.overrideIndex(&t.key, &e.request); i >= 0 {
		b = strconv.AppendInt(append(b, `,"override":{"index":`...), int64(i), 10)
		b = append(b, `,"key":[`...)
		for j, pattern := range p.Overrides[i].Key {
			if j > 0 {
				b = append(b, ',')
			}
			b = policy.AppendString(b, notation(pattern))
		}
		b = append(b, "]}"...)
	}
	if t.free {
		b = append(b, `,"unlimited":true`...)
	}
	if t.shadow {
		b = append(b, `,"mode":"shadow"`...)
	} else {
		b = append(b, `,"mode":"enforced"`...)
	}
	b = strconv.AppendBool(append(b, `,"allowed":`...), t.allowed)
	if t.reason != "" {
		b = policy.AppendString(append(b, `,"reason":`...), string(t.reason))
	}
	var unused attempt
	unused.begin(r, &e.request)
	unused.check(now)
	return unused.appendWindows(append(b, `,"windows":`...), now)
}

// overrideIndex is override by its place in the policy, -1 for none.
func (r *rule) overrideIndex(k *key, req *request) int {
	return slices.IndexFunc(r.overrides, func(o override) bool { return o.holds(k, req) })
}

// appendUnmatched tells why a rule has nothing to do with the request.
func appendUnmatched(b []byte, outcome, why string) []byte {
	b = append(append(append(b, `,"outcome":"`...), outcome...), '"')
	return policy.AppendString(append(b, `,"why":`...), why)
}

// unmatched finds out why r has nothing to do with the request.
func (e *Engine) unmatched(r *rule) (outcome, why string) {
	if why := e.request.fails(&r.policy.Match); why != "" {
		return outcomeNoMatch, why
	}
	for i := range r.exempt {
		if r.exempt[i].holds(&e.request) {
			return outcomeExempt, "exempt[" + strconv.Itoa(i) + "] holds"
		}
	}
	var k key
	k.read(r.key, &e.request)
	for i, part := range k.parts {
		if !part.present {
			return outcomeNoKey, "missing_key: the request has no " + partName(&r.policy.Key[i]) + ", and missing_key is " + string(r.policy.MissingKey)
		}
	}
	return outcomeNoMatch, unexplained
}

// unexplained is said of a condition that predicates has no words for: never,
// says a test.
const unexplained = "match: some condition does not hold"

func appendPart(b []byte, k *policy.KeyPart, p part) []byte {
	b = policy.AppendString(append(b, `{"part":`...), partName(k))
	switch {
	case !p.present:
		return append(b, `,"missing":true}`...)
	case k.Kind == policy.KeyCookie, k.Kind == policy.KeyHeader && isCredential(k.Name), strings.HasPrefix(p.label, "cookie:"), isCredential(strings.TrimPrefix(p.label, "header:")):
		return append(b, `,"hidden":true}`...)
	}
	return append(policy.AppendString(append(b, `,"value":`...), p.whole()), '}')
}

// partName says in words where a part of a key comes from; what has no words
// here is named as KeyDefinition does.
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
