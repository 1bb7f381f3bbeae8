package match

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// IsFast reports whether ReadFast may read a key of these parts: none, a header,
// or the whole address of the client.
func IsFast(parts []KeyPart) bool {
	if len(parts) == 0 {
		return true
	}
	p := &parts[0]
	return len(parts) == 1 && (p.Kind == policy.KeyHeader && p.Scheme == "" || p.Kind == policy.KeyClientIP && p.V4Prefix >= 32)
}

// ReadFast is Read for parts that are IsFast; false: ask Read.
func (k *Key) ReadFast(parts []KeyPart, r *request.Request) bool {
	k.Begin()
	if len(parts) == 0 {
		return true
	}
	var (
		text    string
		present bool
	)
	if p := &parts[0]; p.Kind == policy.KeyHeader {
		text, present = r.Header(p.number)
	} else if text, present = r.ClientText(); present {
		text, present = dotted(text)
	}
	if present {
		k.Parts = append(k.Parts, Value{Text: text, Present: true})
		k.Bytes = state.AppendPart(k.Bytes, text)
	}
	return present
}

// dotted cuts the port off an IPv4 address that is written as netip writes it.
func dotted(text string) (address string, ok bool) {
	var n, digits, dots int
	for i := range len(text) {
		switch c := text[i]; {
		case c-'0' <= 9:
			if digits > 0 && n == 0 { // a zero in front
				return "", false
			}
			n, digits = n*10+int(c-'0'), digits+1
			if n > 65535 || dots < 4 && n > 255 {
				return "", false
			}
			continue
		case digits == 0:
			return "", false
		case c == '.' && dots < 3, c == ':' && dots == 3:
			if dots++; dots == 4 {
				address = text[:i]
			}
		default:
			return "", false
		}
		n, digits = 0, 0
	}
	return address, dots == 4 && digits > 0
}
