package engine

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// AppendReport appends the whole verdict as one JSON object, times in
// nanoseconds:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[{"rule":"r",
//	 "key":["alice"],"mode":"enforced","allowed":false,"reason":"limit",
//	 "remaining":0,"windows":[{"limit":10,"per_ns":1000,"used":10,
//	 "remaining":0,"reset_ns":5}]}]}
//
// retry_after_ns is -1 where no wait would help; reset_ns counts from now; a
// part of the key that the request lacks is null.
func (v *Verdict) AppendReport(b []byte) []byte {
	b = strconv.AppendBool(append(b, `{"allowed":`...), v.Allowed)
	if !v.Allowed {
		b = policy.AppendString(append(b, `,"denied_by":`...), v.DeniedBy().Name)
		b = strconv.AppendInt(append(b, `,"retry_after_ns":`...), v.RetryNs, 10)
	}
	b = append(b, `,"rules":[`...)
	for i := range v.tries {
		if i > 0 {
			b = append(b, ',')
		}
		b = v.tries[i].appendReport(b, v.Now)
	}
	return append(b, "]}"...)
}

func (t *attempt) appendReport(b []byte, now int64) []byte {
	b = policy.AppendString(append(b, `{"rule":`...), t.rule.policy.Name)
	b = append(b, `,"key":[`...)
	for i, p := range t.key.parts {
		if i > 0 {
			b = append(b, ',')
		}
		if p.present {
			b = policy.AppendString(b, p.text)
		} else {
			b = append(b, "null"...)
		}
	}
	b = append(b, `],"mode":"enforced","allowed":`...)
	b = strconv.AppendBool(b, t.allowed)
	if t.reason != "" {
		b = policy.AppendString(append(b, `,"reason":`...), string(t.reason))
	}
	if t.known && len(t.rule.order) > 0 {
		b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(t.remaining()), 10)
	}
	b = append(b, `,"windows":[`...)
	if t.known {
		for i := range t.rule.order {
			if i > 0 {
				b = append(b, ',')
			}
			b = t.appendWindow(b, i, now)
		}
	}
	return append(b, "]}"...)
}

func (t *attempt) appendWindow(b []byte, i int, now int64) []byte {
	w, u := t.window(i)
	if name := t.rule.policy.Limits[i].Name; name != "" {
		b = append(policy.AppendString(append(b, `{"name":`...), name), ',')
	} else {
		b = append(b, '{')
	}
	b = strconv.AppendUint(append(b, `"limit":`...), uint64(w.Limit), 10)
	b = strconv.AppendInt(append(b, `,"per_ns":`...), w.PeriodNs, 10)
	b = strconv.AppendUint(append(b, `,"used":`...), uint64(u.Used), 10)
	b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(w.Remaining(u)), 10)
	b = strconv.AppendInt(append(b, `,"reset_ns":`...), max(0, w.Reset(u, t.entry.Now)-now), 10)
	return append(b, '}')
}

// remaining is what the rule's tightest window has left.
func (t *attempt) remaining() uint32 {
	var least uint32
	for i := range t.rule.order {
		w, u := t.window(i)
		if left := w.Remaining(u); i == 0 || left < least {
			least = left
		}
	}
	return least
}
