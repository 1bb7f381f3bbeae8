package result

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Times are the units in which a result gives times.
type Times uint8

// The filter gives Ns, simulate Ms or both.
const (
	Ns Times = 1 << iota
	Ms
)

// Milliseconds rounds up; -1 stays.
func Milliseconds(ns int64) int64 {
	ms := ns / 1e6
	if ns%1e6 > 0 {
		ms++
	}
	if ns == -1 {
		return -1
	}
	return ms
}

// AppendTime appends a member of an object for each unit: name_ms, name_ns.
func AppendTime(b []byte, name string, ns int64, t Times) []byte {
	if t&Ms != 0 {
		b = strconv.AppendInt(member(b, name, "_ms"), Milliseconds(ns), 10)
	}
	if t&Ns != 0 {
		b = strconv.AppendInt(member(b, name, "_ns"), ns, 10)
	}
	return b
}

// Append appends a result of the filter, but for statistics:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[{"rule":"r",
//	 "key":["alice"],"mode":"enforced","allowed":false,"reason":"limit",
//	 "remaining":0,"windows":[{"limit":10,"per_ns":1000,"used":10,
//	 "remaining":0,"reset_ns":5}]}]}
//
//	{"value":5,"windows":[…]}
//
// A value without windows has Windows nil.
func (a *Result) Append(b []byte) []byte {
	if a.Value != nil {
		b = appendText(strconv.AppendInt(append(b, `{"value":`...), *a.Value, 10), "silent", a.Silent)
		if a.Windows != nil {
			b = AppendWindows(member(b, "windows", ""), a.Windows, Ns)
		}
		return append(AppendBlocked(AppendHeld(b, a.Held), a.BlockedNs, Ns), '}')
	}
	b = appendFlag(appendDecision(b, *a.Allowed, a.DeniedBy, a.RetryNs), "exempt", a.Exempt)
	b = appendFlag(b, "usage", a.IsUsage)
	return append(AppendRules(member(b, "rules", ""), a.Rules, Ns), '}')
}

// appendDecision begins an object.
func appendDecision(b []byte, allowed bool, deniedBy string, retryNs *int64) []byte {
	b = strconv.AppendBool(append(b, `{"allowed":`...), allowed)
	if !allowed {
		b = policy.AppendString(member(b, "denied_by", ""), deniedBy)
		if retryNs != nil {
			b = AppendTime(b, "retry_after", *retryNs, Ns)
		}
	}
	return b
}

// AppendRules appends the rules of a verdict as a list.
func AppendRules(b []byte, rules []Rule, t Times) []byte {
	b = append(b, '[')
	for i := range rules {
		r := &rules[i]
		b = policy.AppendString(append(comma(b), `{"rule":`...), r.Rule)
		b = appendText(b, "override", r.Override)
		b = appendKey(member(b, "key", ""), r.Key)
		b = policy.AppendString(member(b, "mode", ""), r.Mode)
		b = strconv.AppendBool(member(b, "allowed", ""), r.Allowed)
		b = appendText(b, "reason", r.Reason)
		b = appendNumber(b, "remaining", r.Remaining)
		b = AppendWindows(member(b, "windows", ""), r.Windows, t)
		b = append(AppendBlocked(appendNumber(b, "held", r.Held), r.BlockedNs, t), '}')
	}
	return append(b, ']')
}

// AppendSettled appends what a request held as a list.
func AppendSettled(b []byte, list []Settled) []byte {
	b = append(b, '[')
	for i := range list {
		s := &list[i]
		b = policy.AppendString(append(comma(b), `{"rule":`...), s.Rule)
		b = appendNumber(appendNumber(b, "held", &s.Held), "cost", &s.Cost)
		b = append(policy.AppendString(member(b, "by", ""), s.By), '}')
	}
	return append(b, ']')
}

func appendKey(b []byte, parts []*string) []byte {
	b = append(b, '[')
	for _, part := range parts {
		b = comma(b)
		if part == nil {
			b = append(b, "null"...)
		} else {
			b = policy.AppendString(b, *part)
		}
	}
	return append(b, ']')
}

// AppendWindows appends windows as a list.
func AppendWindows(b []byte, windows []Window, t Times) []byte {
	b = append(b, '[')
	for i := range windows {
		w := &windows[i]
		b = appendText(append(comma(b), '{'), "name", w.Name)
		b = appendFlag(b, "unlimited", w.Unlimited)
		b = appendNumber(appendNumber(b, "limit", w.Limit), "requests", w.Requests)
		b = appendText(appendText(b, "limit_from", w.LimitFrom), "limit_is", w.LimitIs)
		b = AppendTime(b, "per", w.PerNs, t)
		if w.Months > 0 {
			b = strconv.AppendInt(append(b, `,"months":`...), w.Months, 10)
		}
		b = appendNumber(b, "used", &w.Used)
		b = appendNumber(b, "remaining", w.Remaining)
		b = append(AppendTime(b, "reset", w.ResetNs, t), '}')
	}
	return append(b, ']')
}

// AppendHeld appends what a key holds beside what it has used, as a member of an object.
func AppendHeld(b []byte, held *uint32) []byte { return appendNumber(b, "held", held) }

// AppendBlocked appends what is left of a key's block, if anything is, as a member of an object.
func AppendBlocked(b []byte, ns int64, t Times) []byte {
	if ns == 0 {
		return b
	}
	return AppendTime(b, "blocked", ns, t)
}

// Metric is one of Stats.Metrics.
type Metric struct {
	Name  string
	Count uint64
}

// AppendStats appends the filter's statistics:
//
//	{"rules":[{"rule":"r","keys":20,"capacity":100,"slots":128,"buckets":8,
//	 "bytes":4096,"metrics":{"allowed":44,"denied":3}}],"vm_starts":5}
//
// metrics has the metrics of each rule, in their order, which Stats.Metrics has not.
func AppendStats(b []byte, rules []Stats, metrics [][]Metric, starts uint64) []byte {
	b = append(b, `{"rules":[`...)
	for i := range rules {
		s := &rules[i]
		b = policy.AppendString(append(comma(b), `{"rule":`...), s.Rule)
		for _, n := range [...]struct {
			name  string
			count uint64
		}{{"keys", s.Keys}, {"capacity", s.Capacity}, {"slots", s.Slots}, {"buckets", s.Pages}, {"bytes", s.Bytes}} {
			b = strconv.AppendUint(member(b, n.name, ""), n.count, 10)
		}
		b = append(member(b, "metrics", ""), '{')
		for _, m := range metrics[i] {
			b = strconv.AppendUint(member(b, m.Name, ""), m.Count, 10)
		}
		b = append(b, "}}"...)
	}
	return append(strconv.AppendUint(append(b, `],"vm_starts":`...), starts, 10), '}')
}

// AppendDenials appends the keys that the filter has denied most:
//
//	{"rules":[{"rule":"r","mode":"enforced","blocks":true,"since_ns":5,"keys":[{"key":["alice"],"denied":7,"error":0},
//	 {"hash":"9f86d081884c7d65","denied":5,"error":2}],"rest":0}]}
func AppendDenials(b []byte, rules []Denials) []byte {
	b = append(b, `{"rules":[`...)
	for i := range rules {
		r := &rules[i]
		b = policy.AppendString(append(comma(b), `{"rule":`...), r.Rule)
		b = appendFlag(appendText(b, "mode", r.Mode), "blocks", r.Blocks)
		if r.SinceNs != 0 {
			b = AppendTime(b, "since", r.SinceNs, Ns)
		}
		b = append(member(b, "keys", ""), '[')
		for j := range r.Keys {
			b = r.Keys[j].append(append(comma(b), '{'))
		}
		b = append(strconv.AppendUint(append(b, `],"rest":`...), uint64(r.Rest), 10), '}')
	}
	return append(b, "]}"...)
}

func (k *DeniedKey) append(b []byte) []byte {
	if k.Key != nil {
		b = appendKey(append(b, `"key":`...), k.Key)
		b = appendFlag(b, "cut", k.Cut)
	} else {
		b = policy.AppendString(append(b, `"hash":`...), k.Hash)
	}
	b = strconv.AppendUint(member(b, "denied", ""), uint64(k.Denied), 10)
	return append(strconv.AppendUint(member(b, "error", ""), uint64(k.Error), 10), '}')
}

// Append appends an explanation:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[
//	 {"rule":"r","outcome":"matches","key":[{"part":"header x-user-id","value":"alice"}],
//	  "cost":1,"override":{"index":0,"key":["gold-*"]},"mode":"enforced","allowed":false,
//	  "reason":"limit","windows":[{"limit":10,"per_ns":1000,"used":10,"remaining":0,"reset_ns":5}]},
//	 {"rule":"s","outcome":"no_match","why":"methods: POST is not one of GET, HEAD",
//	  "failing":"methods","wanted":"GET, HEAD"}]}
func (x *Explanation) Append(b []byte) []byte {
	switch {
	case x.Pending || x.Allowed == nil:
		b = appendFlag(append(b, '{'), "pending", x.Pending)
	default:
		b = appendDecision(b, *x.Allowed, x.DeniedBy, x.RetryNs)
	}
	b = appendFlag(b, "usage", x.IsUsage)
	if len(x.DependsOn) > 0 {
		b = append(member(b, "depends_on", ""), '[')
		for _, name := range x.DependsOn {
			b = policy.AppendString(comma(b), name)
		}
		b = append(b, ']')
	}
	b = append(member(b, "rules", ""), '[')
	for i := range x.Rules {
		b = x.Rules[i].append(comma(b))
	}
	return append(b, "]}"...)
}

func (r *ExplainedRule) append(b []byte) []byte {
	b = policy.AppendString(append(b, `{"rule":`...), r.Rule)
	b = policy.AppendString(member(b, "outcome", ""), r.Outcome)
	b = appendText(b, "why", r.Why)
	b = appendText(b, "failing", r.Failing)
	b = appendText(b, "wanted", r.Wanted)
	if r.Outcome == Matches || r.Key != nil {
		b = r.appendKey(b)
	}
	b = appendText(b, "no_key", r.NoKey)
	b = appendText(b, "hash", r.Hash)
	b = appendFlag(b, "common", r.Common)
	b = appendNumber(b, "cost", r.Cost)
	if r.Outcome != Matches {
		return append(b, '}')
	}
	b = appendNumber(b, "held", r.Held)
	b = appendText(b, "charges", r.Charges)
	b = appendText(b, "body_assumed", r.BodyAssumed)
	b = appendFlag(b, "cost_unreadable", r.CostUnreadable)
	b = appendFlag(b, "too_long", r.TooLong)
	b = r.appendOverride(b)
	b = appendFlag(b, "unlimited", r.Unlimited)
	b = appendText(b, "mode", r.Mode)
	b = appendFlag(b, "pending", r.Pending)
	if !r.Pending {
		b = strconv.AppendBool(member(b, "allowed", ""), *r.Allowed)
	}
	b = r.appendLease(b)
	b = appendText(b, "reason", r.Reason)
	b = AppendWindows(member(b, "windows", ""), r.Windows, Ns)
	return append(AppendBlocked(b, r.BlockedNs, Ns), '}')
}

func (r *ExplainedRule) appendOverride(b []byte) []byte {
	o := r.Override
	if o == nil {
		return b
	}
	b = strconv.AppendInt(append(member(b, "override", ""), `{"index":`...), int64(o.Index), 10)
	b = appendText(b, "name", o.Name)
	b = append(member(b, "key", ""), '[')
	for _, text := range o.Key {
		b = policy.AppendString(comma(b), text)
	}
	return append(b, "]}"...)
}

func (r *ExplainedRule) appendLease(b []byte) []byte {
	l := r.Lease
	if l == nil {
		return b
	}
	b = append(member(b, "lease", ""), '{')
	b = appendNumber(b, "units", &l.Units)
	if l.EndsNs != 0 {
		b = AppendTime(b, "ends", l.EndsNs, Ns)
	}
	b = appendText(b, "silent", l.Silent)
	return append(b, '}')
}

func (r *ExplainedRule) appendKey(b []byte) []byte {
	b = append(member(b, "key", ""), '[')
	for i := range r.Key {
		p := &r.Key[i]
		b = policy.AppendString(append(comma(b), `{"part":`...), p.Part)
		if p.Value != nil {
			b = policy.AppendString(member(b, "value", ""), *p.Value)
		}
		b = appendFlag(b, "missing", p.Missing)
		b = appendFlag(b, "hidden", p.Hidden)
		b = append(b, '}')
	}
	return append(b, ']')
}

// comma separates what follows from an element before it, if there is one.
func comma(b []byte) []byte {
	if last := b[len(b)-1]; last == '[' || last == '{' {
		return b
	}
	return append(b, ',')
}

// member begins a member of an object.
//
//go:noinline // the filter would hold it 28 times
func member(b []byte, name, suffix string) []byte {
	return append(append(append(append(comma(b), '"'), name...), suffix...), `":`...)
}

// appendText leaves out an empty text, appendFlag one that is not set, and
// appendNumber one that there is not.
func appendText(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	return policy.AppendString(member(b, name, ""), text)
}

func appendFlag(b []byte, name string, set bool) []byte {
	if !set {
		return b
	}
	return append(member(b, name, ""), "true"...)
}

func appendNumber(b []byte, name string, n *uint32) []byte {
	if n == nil {
		return b
	}
	return strconv.AppendUint(member(b, name, ""), uint64(*n), 10)
}
