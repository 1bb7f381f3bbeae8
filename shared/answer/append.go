package answer

import (
	"iter"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Times are the units in which an answer gives times.
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

// Append appends an answer of the filter, but for statistics:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[{"rule":"r",
//	 "key":["alice"],"mode":"enforced","allowed":false,"reason":"limit",
//	 "remaining":0,"windows":[{"limit":10,"per_ns":1000,"used":10,
//	 "remaining":0,"reset_ns":5}]}]}
//
//	{"value":5,"windows":[…]}
//
// A value without windows has Windows nil.
func (a *Answer) Append(b []byte) []byte {
	if a.Value != nil {
		b = strconv.AppendInt(append(b, `{"value":`...), *a.Value, 10)
		if a.Windows != nil {
			b = AppendWindows(member(b, "windows", ""), a.Windows, Ns)
		}
		return append(b, '}')
	}
	b = appendDecision(b, *a.Allowed, a.DeniedBy, a.RetryNs)
	return append(AppendRules(member(b, "rules", ""), a.Rules, Ns), '}')
}

// appendDecision begins an object.
func appendDecision(b []byte, allowed bool, deniedBy string, retryNs *int64) []byte {
	b = strconv.AppendBool(append(b, `{"allowed":`...), allowed)
	if !allowed {
		b = policy.AppendString(member(b, "denied_by", ""), deniedBy)
		b = AppendTime(b, "retry_after", *retryNs, Ns)
	}
	return b
}

// AppendRules appends the rules of a verdict as a list.
func AppendRules(b []byte, rules []Rule, t Times) []byte {
	return appendList(b, rules, func(b []byte, r *Rule) []byte {
		b = policy.AppendString(append(b, `{"rule":`...), r.Rule)
		b = appendList(member(b, "key", ""), r.Key, func(b []byte, part **string) []byte {
			if *part == nil {
				return append(b, "null"...)
			}
			return policy.AppendString(b, **part)
		})
		b = policy.AppendString(member(b, "mode", ""), r.Mode)
		b = strconv.AppendBool(member(b, "allowed", ""), r.Allowed)
		b = appendText(b, "reason", r.Reason)
		b = appendNumber(b, "remaining", r.Remaining)
		return append(AppendWindows(member(b, "windows", ""), r.Windows, t), '}')
	})
}

// AppendWindows appends windows as a list.
func AppendWindows(b []byte, windows []Window, t Times) []byte {
	return appendList(b, windows, func(b []byte, w *Window) []byte {
		b = appendText(append(b, '{'), "name", w.Name)
		b = appendFlag(b, "unlimited", w.Unlimited)
		b = appendNumber(b, "limit", w.Limit)
		b = AppendTime(b, "per", w.PerNs, t)
		b = appendNumber(b, "used", &w.Used)
		b = appendNumber(b, "remaining", w.Remaining)
		return append(AppendTime(b, "reset", w.ResetNs, t), '}')
	})
}

// Append appends the statistics of a rule as an object. The order of metrics is
// theirs, so s.Metrics is not read.
func (s *Stats) Append(b []byte, metrics iter.Seq2[string, uint64]) []byte {
	b = policy.AppendString(append(b, `{"rule":`...), s.Rule)
	b = strconv.AppendUint(member(b, "keys", ""), s.Keys, 10)
	b = strconv.AppendUint(member(b, "capacity", ""), s.Capacity, 10)
	b = strconv.AppendUint(member(b, "slots", ""), s.Slots, 10)
	b = strconv.AppendUint(member(b, "buckets", ""), s.Pages, 10)
	b = strconv.AppendUint(member(b, "bytes", ""), s.Bytes, 10)
	b = append(member(b, "metrics", ""), '{')
	for name, n := range metrics {
		b = strconv.AppendUint(member(b, name, ""), n, 10)
	}
	return append(b, "}}"...)
}

// Append appends an explanation:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[
//	 {"rule":"r","outcome":"matches","key":[{"part":"header x-user-id","value":"alice"}],
//	  "cost":1,"override":{"index":0,"key":["gold-*"]},"mode":"enforced","allowed":false,
//	  "reason":"limit","windows":[{"limit":10,"per_ns":1000,"used":10,"remaining":0,"reset_ns":5}]},
//	 {"rule":"s","outcome":"no_match","why":"methods: POST is not one of GET, HEAD"}]}
func (x *Explanation) Append(b []byte) []byte {
	b = appendDecision(b, *x.Allowed, x.DeniedBy, x.RetryNs)
	b = appendList(member(b, "rules", ""), x.Rules, func(b []byte, r *ExplainedRule) []byte { return r.append(b) })
	return append(b, '}')
}

func (r *ExplainedRule) append(b []byte) []byte {
	b = policy.AppendString(append(b, `{"rule":`...), r.Rule)
	b = policy.AppendString(member(b, "outcome", ""), r.Outcome)
	if r.Outcome != Matches {
		return append(appendText(b, "why", r.Why), '}')
	}
	b = appendList(member(b, "key", ""), r.Key, func(b []byte, p *KeyPart) []byte {
		b = policy.AppendString(append(b, `{"part":`...), p.Part)
		if p.Value != nil {
			b = policy.AppendString(member(b, "value", ""), *p.Value)
		}
		return append(appendFlag(appendFlag(b, "missing", p.Missing), "hidden", p.Hidden), '}')
	})
	b = appendNumber(b, "cost", r.Cost)
	b = appendFlag(b, "too_long", r.TooLong)
	if o := r.Override; o != nil {
		b = strconv.AppendInt(append(member(b, "override", ""), `{"index":`...), int64(o.Index), 10)
		b = appendList(member(b, "key", ""), o.Key, func(b []byte, text *string) []byte { return policy.AppendString(b, *text) })
		b = append(b, '}')
	}
	b = appendFlag(b, "unlimited", r.Unlimited)
	b = appendText(b, "mode", r.Mode)
	b = strconv.AppendBool(member(b, "allowed", ""), *r.Allowed)
	b = appendText(b, "reason", r.Reason)
	return append(AppendWindows(member(b, "windows", ""), r.Windows, Ns), '}')
}

// member begins a member of an object that may have others before.
func member(b []byte, name, suffix string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(append(append(append(b, '"'), name...), suffix...), `":`...)
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

func appendList[T any](b []byte, items []T, appendItem func([]byte, *T) []byte) []byte {
	b = append(b, '[')
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendItem(b, &items[i])
	}
	return append(b, ']')
}
