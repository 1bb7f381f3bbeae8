package policy

import (
	"math"
	"strings"
)

// policyFields is the whole document.
var policyFields = []field[Policy]{
	{
		name: "version", shape: integer(Version, Version), required: true,
		doc:  "Version of this format.",
		read: func(r *reader, v value, _ *Policy) { r.integer(v) },
	},
	{
		name: "revision", shape: shape{form: formName},
		doc:  "Set by the control plane when it pushes a policy; reserved in a file.",
		read: readRevision,
	},
	{
		name: "domain", shape: shape{form: formName}, def: "default",
		doc:  "Namespace of the counters.",
		read: func(r *reader, v value, p *Policy) { p.Domain, _ = r.name(v) },
	},
	{
		name: "headers", shape: word(string(HeadersNone), string(HeadersIETF), string(HeadersXRateLimit), string(HeadersBoth)), def: string(HeadersNone),
		doc: "Rate-limit fields on responses: ietf is RateLimit and RateLimit-Policy (draft 10), x-ratelimit the older X-RateLimit-* (draft 03). Retry-After on a denial is separate.",
		read: func(r *reader, v value, p *Policy) {
			w := r.word(v)
			p.Headers = Headers(w)
		},
	},
	{
		name: "rules", shape: listOf("rule"),
		doc:  "The rules, in order. All that match a request must allow it.",
		read: readRules,
	},
	{
		name: "manage", shape: objectOf("manage"),
		doc: "Answer management requests; absent means off.",
		read: func(r *reader, v value, p *Policy) {
			p.Manage = &Manage{}
			readObject(r, v, manageFields, p.Manage)
		},
	},
}

// manageFields is "manage".
var manageFields = []field[Manage]{
	{
		name: "path", shape: shape{form: formText}, required: true,
		doc:  "Path under which management requests are answered, such as /.sluice/.",
		read: readManagePath,
	},
	{
		name: "token_sha256", shape: shape{form: formText}, required: true,
		doc:  "SHA-256 of the bearer token, in hexadecimal.",
		read: readTokenHash,
	},
	{
		name: "port", shape: integer(1, math.MaxUint16),
		doc: "Answer only on this local port; absent means on any.",
		read: func(r *reader, v value, m *Manage) {
			n := r.integer(v)
			m.Port = uint16(n)
		},
	},
}

// MaxRevisionBytes is the longest revision; a policy file leaves that much
// room below MaxBytes for the control plane to add it.
const MaxRevisionBytes = 64

func readRevision(r *reader, v value, p *Policy) {
	if !r.pushed {
		r.fail(v, "is reserved: the control plane sets it when it pushes a policy; remove it")
		return
	}
	s, ok := r.name(v)
	if ok && len(s) > MaxRevisionBytes {
		r.fail(v, "must be at most "+itoa(MaxRevisionBytes)+" bytes, not "+itoa(int64(len(s))))
	}
	p.Revision = s
}

func readManagePath(r *reader, v value, m *Manage) {
	s, ok := r.text(v)
	switch {
	case !ok:
	case s == "/":
		r.fail(v, `must be more than "/", which is every request: write one such as "/.sluice/"`)
	case !strings.HasPrefix(s, "/") || !strings.HasSuffix(s, "/"):
		r.fail(v, `must start and end with "/": write `+quote("/"+strings.Trim(s, "/")+"/"))
	case strings.ContainsAny(s, "?#% \\") || strings.Contains(s, "//"):
		r.fail(v, `must be a plain path without "//", "?", "#", "%", "\" or spaces, such as "/.sluice/"`)
	default:
		m.Path = s
	}
}

// emptySHA256 is the SHA-256 of no bytes: what the shell's pipe gives where TOKEN
// is not set.
var emptySHA256 = [32]byte{
	0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
	0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
}

// readTokenHash never repeats what it read: it may be the token itself.
func readTokenHash(r *reader, v value, m *Manage) {
	s := v.node.Text
	fit := v.node.Kind == String && len(s) == 2*len(m.TokenSHA256)
	for i := 0; fit && i < len(s); i += 2 {
		fit = isHex(s[i]) && isHex(s[i+1])
		m.TokenSHA256[i/2] = hexValue(s[i])<<4 | hexValue(s[i+1])
	}
	switch {
	case fit && m.TokenSHA256 == emptySHA256:
		r.fail(v, "is the SHA-256 of an empty token: set TOKEN first")
		return
	case fit:
		return
	}
	r.fail(v, "must be the SHA-256 of the token in quotes, 64 hexadecimal digits: printf %s \"$TOKEN\" | sha256sum")
}

func readRules(r *reader, v value, p *Policy) {
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	count := len(v.node.Items)
	if count > MaxRules {
		r.fail(v, "has "+itoa(int64(count))+" rules, the most is "+itoa(MaxRules))
		count = MaxRules
	}
	p.Rules = make([]Rule, count)
	r.rules = make([]ruleAt, count)
	for i := range p.Rules {
		at := v.item(i, objectOf("rule"))
		before := len(r.errs) + r.dropped
		readRule(r, at, &p.Rules[i])
		r.rules[i] = ruleAt{value: at, sound: len(r.errs)+r.dropped == before}
	}
}
