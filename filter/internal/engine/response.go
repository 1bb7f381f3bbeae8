package engine

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Response is what the policy gives a denied client: that of the rule the
// denial is attributed to.
func (v *Verdict) Response() *policy.Response {
	if v.Allowed {
		return nil
	}
	return &v.DeniedBy().Response
}

// AppendBody appends the body of a denial. Where a value is not known, "-"
// stands for it.
func (v *Verdict) AppendBody(b []byte) []byte {
	for _, part := range v.Response().Body {
		switch part.Value {
		case policy.NoValue:
			b = append(b, part.Text...)
		case policy.ValueRule:
			b = append(b, v.DeniedBy().Name...)
		default:
			if n, known := v.figure(part.Value); known {
				b = strconv.AppendInt(b, n, 10)
			} else {
				b = append(b, '-')
			}
		}
	}
	return b
}

// appendResponse appends what every denial says of itself and the headers of
// its response. One whose value is not known is left out.
func (e *Engine) appendResponse(dst []Field, v *Verdict) []Field {
	dst = append(dst, Field{"x-envoy-ratelimited", "true"})
	response := v.Response()
	if response.ContentType != "" && len(response.Body) > 0 {
		dst = append(dst, Field{"content-type", response.ContentType})
	}
	for i := range response.Headers {
		h := &response.Headers[i]
		if len(h.Value) == 1 && h.Value[0].Value == policy.NoValue {
			dst = append(dst, Field{h.Name, h.Value[0].Text})
			continue
		}
		text, known := v.appendValue(e.text[0][:0], h.Value)
		e.text[0] = text
		if known {
			dst = append(dst, Field{h.Name, string(text)})
		}
	}
	return dst
}

// appendValue writes a header's value, which is ASCII.
func (v *Verdict) appendValue(b []byte, t policy.Template) (_ []byte, known bool) {
	for _, part := range t {
		switch part.Value {
		case policy.NoValue:
			b = append(b, part.Text...)
		case policy.ValueRule:
			b = appendPrintable(b, v.DeniedBy().Name)
		default:
			n, known := v.figure(part.Value)
			if !known {
				return b, false
			}
			b = strconv.AppendInt(b, n, 10)
		}
	}
	return b, true
}

func appendPrintable(b []byte, s string) []byte {
	for _, r := range s {
		if r < ' ' || r > '~' {
			r = '?'
		}
		b = append(b, byte(r))
	}
	return b
}

// figure is the number that a placeholder stands for: the wait, or the limit
// and the rest of the denying rule's window with least remaining.
func (v *Verdict) figure(p policy.Placeholder) (n int64, known bool) {
	if p == policy.ValueRetryAfter {
		return v.RetryAfter()
	}
	t := v.tries[v.denied]
	if !t.known || len(t.rule.order) == 0 {
		return 0, false
	}
	w, u := t.window(t.tightest())
	if w.Unlimited {
		return 0, false
	}
	if p == policy.ValueLimit {
		return int64(w.Max()), true
	}
	return int64(w.Remaining(u, t.entry.Now)), true
}
