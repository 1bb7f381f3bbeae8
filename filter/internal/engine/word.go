package engine

import "strconv"

// maxWordBytes bounds what a verdict adds to a line of an access log: the rules
// beyond it are only counted.
const maxWordBytes = 4 << 10

// Notable reports whether the verdict is worth a word in an access log: some
// rule denied, shadow rules too, or let the request through undecided.
func (v *Verdict) Notable() bool {
	for _, t := range v.tries {
		if !t.allowed || t.reason != "" {
			return true
		}
	}
	return false
}

// AppendWord appends the verdict of every rule that matched, in policy order,
// as one word for access logs:
//
//	per-user=denied:limit,per-address=allowed,trial=shadow_denied:limit
//
// A rule says allowed or denied; with shadow_ before it where it only reports,
// and shadow_skipped where an enforced rule denied first. Behind a colon is the
// reason of a denial or of a pass without a count. In names, all but letters,
// digits and -._~/ is percent-encoded. Keys are not in it. Rules that would make
// it longer than 4 KiB are left out, and "+3" at the end says how many.
func (v *Verdict) AppendWord(b []byte) []byte {
	start := len(b)
	for i, t := range v.tries {
		before := len(b)
		if i > 0 {
			b = append(b, ',')
		}
		if b = v.appendRuleWord(b, t); len(b)-start > maxWordBytes {
			b = append(b[:before], ",+"...)
			return strconv.AppendInt(b, int64(len(v.tries)-i), 10)
		}
	}
	return b
}

func (v *Verdict) appendRuleWord(b []byte, t *attempt) []byte {
	b = append(appendEncoded(b, t.rule.policy.Name), '=')
	if t.shadow {
		b = append(b, "shadow_"...)
	}
	switch {
	case t.shadow && !v.Allowed:
		return append(b, "skipped"...)
	case t.allowed:
		b = append(b, "allowed"...)
	default:
		b = append(b, "denied"...)
	}
	if t.reason != "" {
		b = append(append(b, ':'), t.reason...)
	}
	return b
}

// appendEncoded appends a name without the signs that the word is made of.
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
