package respond

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// AppendBody appends the body of a denial. "-" stands for a value that is not
// known.
func AppendBody(b []byte, v *decide.Verdict) []byte {
	for _, part := range v.DeniedBy().Response.Body {
		switch part.Value {
		case policy.NoValue:
			b = append(b, part.Text...)
		case policy.ValueRule:
			b = append(b, v.DeniedBy().Name...)
		default:
			if n, known := figure(v, part.Value); known {
				b = strconv.AppendInt(b, n, 10)
			} else {
				b = append(b, '-')
			}
		}
	}
	return b
}

// appendResponse appends the headers of a denial's response, and the one that
// every denial has. It leaves out headers whose value is not known.
func (f *Fields) appendResponse(dst []Field, v *decide.Verdict) []Field {
	dst = append(dst, Field{"x-envoy-ratelimited", "true"})
	response := &v.DeniedBy().Response
	if response.ContentType != "" && len(response.Body) > 0 {
		dst = append(dst, Field{"content-type", response.ContentType})
	}
	for i := range response.Headers {
		h := &response.Headers[i]
		if len(h.Value) == 1 && h.Value[0].Value == policy.NoValue {
			dst = append(dst, Field{h.Name, h.Value[0].Text})
			continue
		}
		text, known := appendValue(f.text[0][:0], v, h.Value)
		f.text[0] = text
		if known {
			dst = append(dst, Field{h.Name, string(text)})
		}
	}
	return dst
}

// appendValue writes a header's value, which is ASCII.
func appendValue(b []byte, v *decide.Verdict, t policy.Template) (_ []byte, known bool) {
	for _, part := range t {
		switch part.Value {
		case policy.NoValue:
			b = append(b, part.Text...)
		case policy.ValueRule:
			b = appendPrintable(b, v.DeniedBy().Name)
		default:
			n, known := figure(v, part.Value)
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

// figure returns the number that a placeholder stands for: the wait, or the limit
// and the units left of the denying rule's tightest window.
func figure(v *decide.Verdict, p policy.Placeholder) (n int64, known bool) {
	if p == policy.ValueRetryAfter {
		return v.RetryAfter()
	}
	a := v.Subjects[v.Denied]
	if !a.Known || len(a.Rule.Policy.Limits) == 0 {
		return 0, false
	}
	w, u := a.Window(a.Tightest())
	if w.Unlimited {
		return 0, false
	}
	if p == policy.ValueLimit {
		return int64(w.Max()), true
	}
	return int64(w.Remaining(u, a.Now())), true
}
