package policy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// MaxCapacity is the most live keys of a counter, 2²⁴: some 600 MB at three
	// windows a key, beyond any Envoy that also serves requests.
	MaxCapacity = 1 << 24
	// MaxWindows is how many windows a rule may have.
	MaxWindows = 16
	// MaxExempt is how many exemptions a rule, or a policy for all rules, may have.
	MaxExempt = 100
	// MaxCosts is how many costs a rule may have.
	MaxCosts = 100
)

// ruleObject is one item of "rules". The algorithm comes before the limits,
// which take it as their default, and the response before missing_key.
var ruleObject = newObject("rule", []field[Rule]{
	{"name", required(name), "", func(r *reader, v value, rule *Rule) { rule.Name = r.name(v) }},
	{"counter", name, "", func(r *reader, v value, rule *Rule) { rule.Counter = r.name(v) }},
	words("scope", "proxy", func(r *Rule) *Scope { return &r.Scope }, ScopeProxy, ScopeCluster),
	{"match", objectOf("match"), "", func(r *reader, v value, rule *Rule) { readObject(r, v, matchObject, &rule.Match) }},
	{"exempt", listOf(objectOf("match"), 0, MaxExempt), "", func(r *reader, v value, rule *Rule) { rule.Exempt = r.exemptions(v) }},
	{"key", listOf(objectOf("key"), 0, MaxKeyParts), "", readKey},
	{"algorithm", word(append(ofLimits.Words, AlgorithmName(limit.Concurrency))...), "fixed_window", func(r *reader, v value, _ *Rule) {
		r.rule.algorithm = r.algorithm(v)
	}},
	{"limits", required(listOf(objectOf("limit"), 0, MaxWindows)), "", readLimits},
	{"overrides", listOf(objectOf("override"), 0, MaxOverrides), "", readOverrides},
	{"cost", costs, "1", readCost},
	{"settle", objectOf("settle"), "", readSettle},
	{"hold", duration, "10m", func(r *reader, v value, rule *Rule) {
		rule.HoldNs = r.durationIn(v, MinHoldNs, MaxHoldNs, HoldRange)
	}},
	{"max_hold", duration, "", func(r *reader, v value, rule *Rule) { rule.MaxHoldNs, _ = r.duration(v) }},
	{"linger", duration, "1s", func(r *reader, v value, rule *Rule) {
		rule.LingerNs = r.durationIn(v, 0, MaxLingerNs, LingerRange)
	}},
	{"count_denied", boolean, "false", func(r *reader, v value, rule *Rule) { rule.CountDenied = r.boolean(v) }},
	words("mode", "enforce", func(r *Rule) *Mode { return &r.Mode }, ModeEnforce, ModeShadow, ModeOff),
	{"enforce_percent", integer(0, 100), "100", func(r *reader, v value, rule *Rule) {
		rule.EnforcePercent = uint8(r.integer(v))
	}},
	{"capacity", integer(1, MaxCapacity), "65536", func(r *reader, v value, rule *Rule) {
		rule.Capacity = uint32(r.integer(v))
	}},
	words("on_full", "inherit", func(r *Rule) *OnFull { return &r.OnFull }, FullInherit, FullDeny, FullAllow),
	words("on_error", "allow", func(r *Rule) *Failure { return &r.OnError }, FailAllow, FailDeny),
	words("on_contention", "deny", func(r *Rule) *Failure { return &r.OnContention }, FailDeny, FailAllow),
	{"lease", choice("lease", word("auto", "off"), integer(1, MaxLease)), "auto", readLease},
	words("on_unavailable", "local", func(r *Rule) *OnUnavailable { return &r.OnUnavailable },
		UnavailableLocal, UnavailableAllow, UnavailableDeny),
	{"response", objectOf("response"), "", func(r *reader, v value, rule *Rule) {
		readObject(r, v, responseObject, &rule.Response)
		r.rule.givesBody = v.has("body")
	}},
	{"missing_key", missingKeys, "skip", readMissingKey},
})

func readRule(r *reader, v value, rule *Rule) {
	r.rule = ruleState{Rule: rule, algorithm: limit.FixedWindow}
	rule.Response = DefaultResponse()
	if !readObject(r, v, ruleObject, rule) {
		return
	}
	r.fitsHold(v, rule)
	isBucket := func(l Limit) bool { return l.Algorithm == limit.TokenBucket }
	switch {
	case rule.CountDenied && r.rule.holds():
		r.fail(v.field("count_denied"), HeldDenials)
	case rule.CountDenied && slices.ContainsFunc(rule.Limits, isBucket):
		r.fail(v.field("count_denied"), CountDenied)
	}
	if rule.Mode == ModeShadow {
		r.refuse(v, ShadowPercent, "enforce_percent")
	}
	r.fitsScope(v, rule)
	rule.setUnits()
	if rule.Counter == "" {
		rule.Counter = rule.Name
	}
}

// exemptions reads a list of matches. One without conditions would exempt every
// request, which no one means.
func (r *reader) exemptions(v value) (list []Match) {
	if !r.items(v) {
		return nil
	}
	for i := range v.Items {
		at := v.item(i)
		if at.Kind == Object && len(at.Fields) == 0 {
			r.fail(at, ExemptsAll)
			continue
		}
		var m Match
		readObject(r, at, matchObject, &m)
		list = append(list, m)
	}
	return list
}
