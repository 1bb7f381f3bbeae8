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
			b = policy.AppendString(b, p.whole())
		} else {
			b = append(b, "null"...)
		}
	}
	if t.shadow {
		b = append(b, `],"mode":"shadow","allowed":`...)
	} else {
		b = append(b, `],"mode":"enforced","allowed":`...)
	}
	b = strconv.AppendBool(b, t.allowed)
	if t.reason != "" {
		b = policy.AppendString(append(b, `,"reason":`...), string(t.reason))
	}
	if t.known && len(t.rule.order) > 0 {
		if left, limited := t.remaining(); limited {
			b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(left), 10)
		}
	}
	b = append(b, `,"windows":`...)
	return append(t.appendWindows(b, now), '}')
}

func (t *attempt) appendWindows(b []byte, now int64) []byte {
	b = append(b, '[')
	if t.known {
		for i := range t.rule.order {
			if i > 0 {
				b = append(b, ',')
			}
			b = t.appendWindow(b, i, now)
		}
	}
	return append(b, ']')
}

func (t *attempt) appendWindow(b []byte, i int, now int64) []byte {
	w, u := t.window(i)
	b = append(b, '{')
	if name := t.rule.policy.Limits[i].Name; name != "" {
		b = append(policy.AppendString(append(b, `"name":`...), name), ',')
	}
	if w.Unlimited {
		b = append(b, `"unlimited":true`...)
	} else {
		b = strconv.AppendUint(append(b, `"limit":`...), uint64(w.Max()), 10)
	}
	b = strconv.AppendInt(append(b, `,"per_ns":`...), w.PeriodNs, 10)
	b = strconv.AppendUint(append(b, `,"used":`...), uint64(w.Count(u, t.entry.Now)), 10)
	if !w.Unlimited {
		b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(w.Remaining(u, t.entry.Now)), 10)
	}
	b = strconv.AppendInt(append(b, `,"reset_ns":`...), max(0, w.Reset(u, t.entry.Now)-now), 10)
	return append(b, '}')
}

// tightest returns the index of the rule's limit that has least left.
func (t *attempt) tightest() int {
	best, least := 0, uint32(0)
	limited := false
	for i := range t.rule.order {
		w, u := t.window(i)
		if w.Unlimited {
			continue
		}
		if left := w.Remaining(u, t.entry.Now); !limited || left < least {
			best, least, limited = i, left, true
		}
	}
	return best
}

// remaining is what the rule's tightest window has left.
func (t *attempt) remaining() (left uint32, limited bool) {
	w, u := t.window(t.tightest())
	return w.Remaining(u, t.entry.Now), !w.Unlimited
}
