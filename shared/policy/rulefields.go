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
	// MaxKeyParts is how many parts a key, and a first_of in it, may have.
	MaxKeyParts = 16
	// MaxExempt is how many exemptions a rule may have.
	MaxExempt = 100
)

// ruleFields is one item of "rules". The algorithm comes before the limits,
// which take it as their default.
var ruleFields = []field[Rule]{
	{
		name: "name", shape: shape{form: formName}, required: true,
		doc:  "Unique; names the rule in metrics and messages.",
		read: func(r *reader, v value, rule *Rule) { rule.Name, _ = r.name(v) },
	},
	{
		name: "counter", shape: shape{form: formName},
		doc:  "Identity of the counters; default is the name. Rules with one counter share it, and a rule that keeps its counter can be renamed.",
		read: func(r *reader, v value, rule *Rule) { rule.Counter, _ = r.name(v) },
	},
	{
		name: "scope", shape: word("proxy"), def: "proxy",
		doc:  "Where the counters live: in each Envoy process.",
		read: func(r *reader, v value, _ *Rule) { r.word(v) },
	},
	{
		name: "match", shape: objectOf("match"),
		doc:  "Which requests the rule is for: all given conditions must hold; absent is every request.",
		read: func(r *reader, v value, rule *Rule) { readObject(r, v, matchFields, &rule.Match) },
	},
	{
		name: "exempt", shape: listOf("match"),
		doc:  "Requests that the rule is not for, although they match: a list of objects like match; one that holds is enough.",
		read: readExempt,
	},
	{
		name: "key", shape: listOf("key"),
		doc:  "The parts of the key, in order; absent or empty is one counter for all.",
		read: readKey,
	},
	{
		name: "missing_key", shape: word(string(MissingSkip), string(MissingDeny), string(MissingShare)), def: string(MissingSkip),
		doc: "What happens to a request that lacks a part of the key: the rule does not apply to it, it is denied, or all such requests share a counter.",
		read: func(r *reader, v value, rule *Rule) {
			w := r.word(v)
			rule.MissingKey = MissingKey(w)
		},
	},
	{
		name: "algorithm", shape: algorithmShape, def: "fixed_window",
		doc:  "How the windows count, unless a limit says otherwise.",
		read: func(r *reader, v value, _ *Rule) { r.rule.algorithm = readAlgorithm(r, v) },
	},
	{
		name: "limits", shape: listOf("limit"), required: true,
		doc:  "The windows. A request must fit in every one; an empty list always allows.",
		read: readLimits,
	},
	{
		name: "overrides", shape: listOf("override"),
		doc:  "Other limits for some keys; the first override that matches a key holds.",
		read: readOverrides,
	},
	{
		name: "cost", shape: choice("cost", `a whole number from 1 to 4294967295 or an object such as {header: x-cost}`), def: "1",
		doc:  "How many units a request takes: a number, or read from a header or a query parameter.",
		read: readCost,
	},
	{
		name: "count_denied", shape: boolean(), def: "false",
		doc:  "Whether a request that this rule denies is counted all the same; not for token_bucket.",
		read: func(r *reader, v value, rule *Rule) { rule.CountDenied = r.boolean(v) },
	},
	{
		name: "mode", shape: word(string(ModeEnforce), string(ModeShadow), string(ModeOff)), def: string(ModeEnforce),
		doc: "shadow: the rule decides, counts and reports, and never denies. off: it does nothing.",
		read: func(r *reader, v value, rule *Rule) {
			w := r.word(v)
			rule.Mode = Mode(w)
		},
	},
	{
		name: "enforce_percent", shape: integer(0, 100), def: "100",
		doc: "Share of the keys on which denials are enforced: the same keys on every Envoy. The others act as in mode shadow, with which this does not go.",
		read: func(r *reader, v value, rule *Rule) {
			n := r.integer(v)
			rule.EnforcePercent = uint8(n)
		},
	},
	{
		name: "capacity", shape: integer(1, MaxCapacity), def: "65536",
		doc: "Live keys the counter has room for.",
		read: func(r *reader, v value, rule *Rule) {
			n := r.integer(v)
			rule.Capacity = uint32(n)
		},
	},
	{
		name: "on_full", shape: word(string(FullInherit), string(FullDeny), string(FullAllow)), def: string(FullInherit),
		doc: "What happens to a new key where there is no room: it takes the place of the key that uses least, without anyone gaining quota; it is denied; or it is allowed.",
		read: func(r *reader, v value, rule *Rule) {
			w := r.word(v)
			rule.OnFull = OnFull(w)
		},
	},
	{
		name: "on_error", shape: word(string(FailAllow), string(FailDeny)), def: string(FailAllow),
		doc: "The verdict when a call to the host fails.",
		read: func(r *reader, v value, rule *Rule) {
			w := r.word(v)
			rule.OnError = Failure(w)
		},
	},
	{
		name: "on_contention", shape: word(string(FailDeny), string(FailAllow)), def: string(FailDeny),
		doc: "The verdict when the compare-and-swap retries run out.",
		read: func(r *reader, v value, rule *Rule) {
			w := r.word(v)
			rule.OnContention = Failure(w)
		},
	},
	{
		name: "response", shape: objectOf("response"),
		doc:  "What a denied client gets: status, body and headers.",
		read: readResponse,
	},
}

func readRule(r *reader, v value, rule *Rule) {
	before := len(r.errs) + r.dropped
	r.rule = ruleState{Rule: rule, algorithm: limit.FixedWindow}
	rule.Response = DefaultResponse()
	if !readObject(r, v, ruleFields, rule) {
		return
	}
	r.fitsRule(v, rule)
	rule.setUnits()
	if rule.Counter == "" {
		rule.Counter = rule.Name
	}
	if len(r.errs)+r.dropped == before {
		r.escapable(v, rule)
	}
	if len(r.errs)+r.dropped == before {
		r.unreachable(v, rule)
		r.spellings(v, rule)
	}
}

// fitsRule checks what does not go together.
func (r *reader) fitsRule(v value, rule *Rule) {
	hasBucket := func(l Limit) bool { return l.Algorithm == limit.TokenBucket }
	if rule.CountDenied && slices.ContainsFunc(rule.Limits, hasBucket) {
		r.fail(fieldAt(v, "count_denied"), "does not go with token_bucket, where a denied request takes nothing: remove it, or use another algorithm")
	}
	if rule.Mode == ModeShadow && has(v, "enforce_percent") {
		r.fail(fieldAt(v, "enforce_percent"), "does not go with mode shadow, which enforces nothing: remove it, or set mode to enforce")
	}
}
