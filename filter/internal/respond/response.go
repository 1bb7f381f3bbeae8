package respond

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// AppendBody appends the body of a denial. "-" stands for a value that is not known.
func AppendBody(b []byte, v *decide.Verdict) []byte {
	for _, part := range v.Response().Body {
		next, known := appendPart(b, v, part)
		b = next
		if !known {
			b = append(b, '-')
		}
	}
	return b
}

// appendResponse appends the headers of a denial's response. x-envoy-ratelimited tells Envoy and
// its clients that a rate limit was reached; a missing key is not one. Headers whose value is not
// known are left out.
func (f *Fields) appendResponse(dst []Field, v *decide.Verdict) []Field {
	if !v.LacksKey() {
		dst = append(dst, Field{"x-envoy-ratelimited", "true"})
	}
	response := v.Response()
	if seconds, ok := v.RetryAfter(); ok && response.RetryInfo {
		f.body = AppendBody(f.body[:0], v)
		f.value = appendRetryInfo(f.value[:0], seconds, int64(response.GRPCStatus), f.body)
		dst = append(dst, Field{"grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(f.value)})
	}
	if response.ContentType != "" && len(response.Body) > 0 {
		dst = append(dst, Field{"content-type", response.ContentType})
	}
	for i := range response.Headers {
		h := &response.Headers[i]
		if len(h.Value) == 1 && h.Value[0].Value == policy.NoValue {
			dst = append(dst, Field{h.Name, h.Value[0].Text})
			continue
		}
		value, known := appendValue(f.value[:0], v, h.Value)
		f.value = value
		if known {
			dst = append(dst, Field{h.Name, strings.Map(printable, string(value))})
		}
	}
	return dst
}

// appendRetryInfo appends a google.rpc.Status. Its code and message must be those of grpc-status
// and grpc-message:
//
//	Status    {code: 1, message: 2, details: 3 Any}
//	Any       {type_url: 1, value: 2 RetryInfo}
//	RetryInfo {retry_delay: 1 Duration}
//	Duration  {seconds: 1}
func appendRetryInfo(b []byte, seconds, code int64, message []byte) []byte {
	const (
		number, bytes = 0, 2 // wire types
		typeURL       = "type.googleapis.com/google.rpc.RetryInfo"
	)
	duration := binary.AppendUvarint([]byte{1<<3 | number}, uint64(seconds))
	info := append([]byte{1<<3 | bytes, byte(len(duration))}, duration...)
	detail := append([]byte{1<<3 | bytes, byte(len(typeURL))}, typeURL...)
	detail = append(detail, 2<<3|bytes, byte(len(info)))
	detail = append(detail, info...)
	b = append(b, 1<<3|number, byte(code), 2<<3|bytes)
	b = binary.AppendUvarint(b, uint64(len(message)))
	b = append(b, message...)
	b = append(b, 3<<3|bytes, byte(len(detail)))
	return append(b, detail...)
}

// appendValue appends a header's value. known is false if a part of it is not known.
func appendValue(b []byte, v *decide.Verdict, t policy.Template) (_ []byte, known bool) {
	for _, part := range t {
		b, known = appendPart(b, v, part)
		if !known {
			return b, false
		}
	}
	return b, true
}

func appendPart(b []byte, v *decide.Verdict, part policy.TemplatePart) (_ []byte, known bool) {
	switch part.Value {
	case policy.NoValue:
		return append(b, part.Text...), true
	case policy.ValueRule:
		return append(b, v.DeniedBy().Name...), true
	case policy.ValueMissing:
		if !v.LacksKey() {
			return b, false
		}
		return appendMissing(b, v.Denying), true
	default:
		n, known := figure(v, part.Value)
		if known {
			b = strconv.AppendInt(b, n, 10)
		}
		return b, known
	}
}

// appendMissing appends the names of the key parts that the request lacks.
func appendMissing(b []byte, s *decide.Subject) []byte {
	separator := ""
	for i := range s.Key.Parts {
		if !s.Key.Parts[i].Present {
			b = appendPartName(append(b, separator...), &s.Rule.Policy.Key[i])
			separator = ", "
		}
	}
	return b
}

// printable returns r, or "?" if a header cannot have r.
func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '?'
	}
	return r
}

// figure returns the number that a placeholder stands for: the wait, or the limit or the units
// left of the denying rule's tightest window.
func figure(v *decide.Verdict, p policy.Placeholder) (n int64, known bool) {
	if p == policy.ValueRetryAfter {
		return v.RetryAfter()
	}
	view, known := v.Denying.View()
	if !known || len(v.Denying.Rule.Policy.Limits) == 0 {
		return 0, false
	}
	i := view.Tightest()
	w, _ := view.Window(i)
	if w.Unlimited {
		return 0, false
	}
	if p == policy.ValueLimit {
		return int64(w.Max()), true
	}
	return int64(view.Remaining(i)), true
}

// PartName returns the name of a key part in words.
func PartName(k *policy.KeyPart) string { return string(appendPartName(nil, k)) }

func appendPartName(b []byte, k *policy.KeyPart) []byte {
	switch k.Kind {
	case policy.KeyHeader, policy.KeyQuery, policy.KeyCookie, policy.KeyAddress:
		if k.Kind == policy.KeyAddress {
			b = append(b, "address in header "...)
		} else {
			b = append(append(b, k.Kind.String()...), ' ')
		}
		b = append(b, k.Name...)
		if k.Scheme != "" {
			b = append(append(append(b, " ("...), k.Scheme...), ')')
		}
	case policy.KeyPath:
		b = append(b, "path"...)
		if k.Segment > 0 {
			b = strconv.AppendInt(append(b, " segment "...), int64(k.Segment), 10)
		}
	case policy.KeyJWT:
		b = append(b, "jwt claim"...)
		for i, name := range k.Path {
			b = append(append(b, " ."[min(i, 1)]), name...)
		}
	case policy.KeyFirstOf:
		for i := range k.Of {
			if i > 0 {
				b = append(b, " or "...)
			}
			b = appendPartName(b, &k.Of[i])
		}
	default:
		b = append(b, k.Label()...)
	}
	return b
}
