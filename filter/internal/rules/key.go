package rules

import (
	"net/netip"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/origin"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// KeyPart is a compiled policy.KeyPart.
type KeyPart struct {
	*policy.KeyPart
	number    int // of the header, parameter or cookie; see request.Request
	attribute request.Attribute
	of        []KeyPart // of a first_of: its key parts
	label     string    // of a key part in a first_of
}

// CompileKey compiles the key parts of a rule.
func CompileKey(r *request.Request, parts []policy.KeyPart) []KeyPart {
	var key []KeyPart
	for i := range parts {
		k := KeyPart{KeyPart: &parts[i]}
		switch k.Kind {
		case policy.KeyHeader, policy.KeyAddress:
			k.number = r.HeaderNumber(k.Name)
		case policy.KeyQuery:
			k.number = r.ParameterNumber(k.Name)
		case policy.KeyCookie:
			k.number = r.CookieNumber(k.Name)
		case policy.KeyRoute, policy.KeyJWT, policy.KeyProperty:
			k.attribute = r.CompileAttribute(k.KeyPart)
		case policy.KeyFirstOf:
			k.of = CompileKey(r, k.Of)
			for j := range k.of {
				k.of[j].label = k.of[j].Label()
			}
		default: // needs no number
		}
		key = append(key, k)
	}
	return key
}

// ReadKey reads all key parts from the request, and reports whether the request has them all.
func ReadKey(k *policy.Key, parts []KeyPart, r *request.Request) bool {
	k.Reset()
	complete := true
	for i := range parts {
		v, part := parts[i].choose(r)
		k.Add(v)
		complete = complete && v.Present
		if r.IsDoubtful() {
			addReadings(k, i, part, r)
		}
	}
	return complete
}

// addReadings adds what else a server may read as the key's part, which p has read.
func addReadings(k *policy.Key, part int, p *KeyPart, r *request.Request) {
	prefix := ""
	if p.label != "" {
		prefix = p.label + "="
	}
	var readings []string
	switch p.Kind {
	case policy.KeyHost:
		readings = r.Hosts()
	case policy.KeyPath:
		readings = r.Paths()
	default: // has one reading
	}
	for i := 1; i < len(readings); i++ {
		text := readings[i]
		if p.Segment > 0 {
			text, _ = segment(text, p.Segment)
		}
		k.AddReading(part, prefix+text)
	}
}

// choose reads the key part. It also returns the part that had the value: of a first_of, the
// first one that the request has.
func (p *KeyPart) choose(r *request.Request) (policy.Value, *KeyPart) {
	if p.Kind != policy.KeyFirstOf {
		text, present := p.read(r)
		return policy.Value{Text: text, Present: present}, p
	}
	for i := range p.of {
		one := &p.of[i]
		if text, present := one.read(r); present {
			return policy.Value{Label: one.label, Text: text, Present: true}, one
		}
	}
	return policy.Value{}, p
}

func (p *KeyPart) read(r *request.Request) (string, bool) {
	switch p.Kind {
	case policy.KeyHeader:
		text, present := r.Header(p.number)
		if p.Scheme == "" {
			return text, present
		}
		return credential(text, p.Scheme)
	case policy.KeyAddress:
		list, _ := r.Header(p.number)
		ip, present := address(list)
		if !present {
			return "", false
		}
		return p.Network(ip), true
	case policy.KeyClientIP:
		return p.clientNetwork(r)
	case policy.KeyHost:
		return r.Host()
	case policy.KeyMethod:
		method, present := r.Method()
		return strings.ToUpper(method), present
	case policy.KeyQuery:
		value, present, _ := r.Parameter(p.number)
		return value, present
	case policy.KeyCookie:
		return r.Cookie(p.number)
	case policy.KeyRoute, policy.KeyJWT, policy.KeyProperty:
		return p.attribute.Read(r)
	case policy.KeyPath:
		if p.Segment == 0 {
			return r.Path()
		}
		return p.firstSegment(r.Paths())
	default:
		return "", false
	}
}

// firstSegment returns the segment of the first of these readings of a path that has it, so that no spelling of the
// path hides it.
func (p *KeyPart) firstSegment(paths []string) (string, bool) {
	for _, path := range paths {
		if text, present := segment(path, p.Segment); present {
			return text, true
		}
	}
	return "", false
}

// segment returns the n-th segment of a path, from 1.
func segment(path string, n int) (string, bool) {
	rest, rooted := strings.CutPrefix(path, "/")
	if !rooted {
		return "", false
	}
	for ; n > 1; n-- {
		_, after, more := strings.Cut(rest, "/")
		if !more {
			return "", false
		}
		rest = after
	}
	text, _, _ := strings.Cut(rest, "/")
	return text, text != ""
}

// credential returns what follows the scheme and its spaces, up to the next space.
func credential(text, scheme string) (string, bool) {
	if len(text) <= len(scheme) || !strings.EqualFold(text[:len(scheme)], scheme) {
		return "", false
	}
	text = text[len(scheme):]
	if text[0] != ' ' && text[0] != '\t' {
		return "", false
	}
	text = strings.TrimLeft(text, " \t")
	if end := strings.IndexAny(text, " \t"); end >= 0 {
		text = text[:end]
	}
	return text, text != ""
}

// address returns the first address of a list. It may be in quotes or brackets, and have a
// port.
func address(list string) (netip.Addr, bool) {
	text, _, _ := strings.Cut(list, ",")
	text = strings.Trim(text, "\" \t")
	if !strings.Contains(text, "]:") {
		text = strings.Trim(text, "[]")
	}
	ip := origin.Address(text)
	return ip, ip.IsValid()
}

// clientNetwork returns the network of the client, or its address if the rule counts by that.
func (p *KeyPart) clientNetwork(r *request.Request) (string, bool) {
	ip, present := r.Client()
	if !present || p.Bits(ip) >= ip.BitLen() {
		return r.ClientText()
	}
	return p.Network(ip), true
}
