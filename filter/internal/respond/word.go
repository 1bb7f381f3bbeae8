package respond

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

// maxWordBytes bounds what a verdict adds to a line of an access log: the rules
// beyond it are only counted.
const maxWordBytes = 4 << 10

// Notable reports whether an access log should have the verdict: a rule denied, even a shadow
// rule, or a rule let the request through without deciding.
func Notable(v *decide.Verdict) bool {
	for _, s := range v.Subjects {
		if s.Denies() || s.Reason() != "" {
			return true
		}
	}
	return false
}

// AppendWord appends the verdict of every rule that matched, in policy order, as one word for
// access logs:
//
//	per-user=denied:limit,per-plan:gold=allowed,new-rule=shadow_denied:limit
//
// A colon before the = separates the rule's name from that of its override. Each rule's verdict
// is allowed or denied. That of a shadow rule begins with shadow_; shadow_skipped says that an
// enforced rule denied first. After a colon comes the reason of a denial, or of a pass without a
// count. In names, all signs but letters, digits and -._~/ are percent-encoded. The word has no
// keys. It leaves out rules beyond 4 KiB, and "+3" at the end says how many.
func AppendWord(b []byte, v *decide.Verdict) []byte {
	start := len(b)
	for i, s := range v.Subjects {
		before := len(b)
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRuleWord(b, v, s)
		if len(b)-start > maxWordBytes {
			b = append(b[:before], ",+"...)
			return strconv.AppendInt(b, int64(len(v.Subjects)-i), 10)
		}
	}
	return b
}

func appendRuleWord(b []byte, v *decide.Verdict, s *decide.Subject) []byte {
	b = appendEncoded(b, s.Rule.Policy.Name)
	if name := s.OverrideName(); name != "" {
		b = appendEncoded(append(b, ':'), name)
	}
	b = append(b, '=')
	if s.Shadow {
		b = append(b, "shadow_"...)
	}
	switch {
	case s.Shadow && !v.Allowed:
		return append(b, "skipped"...)
	case s.Denies():
		b = append(b, "denied"...)
	default:
		b = append(b, "allowed"...)
	}
	if reason := s.Reason(); reason != "" {
		b = append(append(b, ':'), reason...)
	}
	return b
}

// appendEncoded percent-encodes the characters that separate the word's parts.
func appendEncoded(b []byte, name string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(name) {
		switch c := name[i]; {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', c == '-', c == '.', c == '_', c == '~', c == '/':
			b = append(b, c)
		default:
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}
