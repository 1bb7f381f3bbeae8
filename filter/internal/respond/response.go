package respond

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// AppendBody appends the body of a denial. "-" stands for a value that is not
// known.
func AppendBody(b []byte, v *decide.Verdict) []byte {
	for _, part := range v.Response().Body {
		known := false
		if b, known = appendPart(b, v, part); !known {
			b = append(b, '-')
		}
	}
	return b
}

// appendResponse appends the headers of a denial's response, and the one by which Envoy and
// its clients tell a rate limit, which a missing key is not. It leaves out headers whose
// value is not known.
func (f *Fields) appendResponse(dst []Field, v *decide.Verdict) []Field {
	if !v.LacksKey() {
		dst = append(dst, Field{"x-envoy-ratelimited", "true"})
	}
	response := v.Response()
	if seconds, ok := v.RetryAfter(); ok && response.RetryInfo {
		f.text[0] = appendRetryInfo(f.text[0][:0], seconds, int64(response.GRPCStatus), AppendBody(f.text[1][:0], v))
		dst = append(dst, Field{"grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(f.text[0])})
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
		text, known := appendValue(f.text[0][:0], v, h.Value)
		f.text[0] = text
		if known {
			dst = append(dst, Field{h.Name, strings.Map(printable, string(text))})
		}
	}
	return dst
}

// appendRetryInfo appends a google.rpc.Status, whose code and message must be those of grpc-status and grpc-message:
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
	detail = append(append(detail, 2<<3|bytes, byte(len(info))), info...)
	b = append(b, 1<<3|number, byte(code), 2<<3|bytes)
	b = append(binary.AppendUvarint(b, uint64(len(message))), message...)
	return append(append(b, 3<<3|bytes, byte(len(detail))), detail...)
}

// appendValue writes a header's value.
func appendValue(b []byte, v *decide.Verdict, t policy.Template) (_ []byte, known bool) {
	for _, part := range t {
		if b, known = appendPart(b, v, part); !known {
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
		return appendMissing(b, v.Subjects[v.Denied]), true
	default:
		n, known := figure(v, part.Value)
		if known {
			b = strconv.AppendInt(b, n, 10)
		}
		return b, known
	}
}

// appendMissing names the parts of the key that the request lacks.
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

// printable is r, or "?" where a header cannot have it.
func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '?'
	}
	return r
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
	i := a.Tightest()
	w, _ := a.Window(i)
	if w.Unlimited {
		return 0, false
	}
	if p == policy.ValueLimit {
		return int64(w.Max()), true
	}
	return int64(a.Remaining(i)), true
}

// PartName names a key part in words.
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
