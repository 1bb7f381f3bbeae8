package engine

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// keyPart is a compiled policy.KeyPart.
type keyPart struct {
	*policy.KeyPart
	number    int // of the header, parameter or cookie; see request
	attribute attribute
	of        []keyPart // of a first_of
	label     string    // of one of those
}

func (r *request) compileKey(parts []policy.KeyPart) []keyPart {
	var key []keyPart
	for i := range parts {
		k := keyPart{KeyPart: &parts[i]}
		switch k.Kind {
		case policy.KeyHeader:
			k.number = r.number(k.Name)
		case policy.KeyQuery:
			k.number = r.parameterNumber(k.Name)
		case policy.KeyCookie:
			r.cookieHeader = r.number("cookie")
			k.number = r.cookieNumber(k.Name)
		case policy.KeyRoute, policy.KeyJWT, policy.KeyProperty:
			k.attribute = r.compileAttribute(k.KeyPart)
		case policy.KeyFirstOf:
			k.of = r.compileKey(k.Of)
			for j := range k.of {
				k.of[j].label = k.of[j].Label()
			}
		default: // nothing to look up by number
		}
		key = append(key, k)
	}
	return key
}

// key is a request's key for one rule: its parts as text, and the bytes that
// are hashed.
type key struct {
	parts []part
	bytes []byte
}

type part struct {
	label   string // of a first_of's: which of its parts it is
	text    string
	present bool
}

// whole is the part's text, for people and for patterns.
func (p *part) whole() string {
	if p.label == "" {
		return p.text
	}
	return p.label + "=" + p.text
}

func (k *key) begin() {
	k.parts, k.bytes = k.parts[:0], k.bytes[:0]
}

// add appends one part.
func (k *key) add(p part) {
	k.parts = append(k.parts, p)
	if !p.present {
		k.bytes = state.AppendMissing(k.bytes)
		return
	}
	if p.label != "" {
		k.bytes = state.AppendPart(k.bytes, p.label)
	}
	k.bytes = state.AppendPart(k.bytes, p.text)
}

// read takes every part from the request and reports whether all were there.
func (k *key) read(parts []keyPart, r *request) bool {
	k.begin()
	complete := true
	for i := range parts {
		p := parts[i].choose(r)
		k.add(p)
		complete = complete && p.present
	}
	return complete
}

// choose reads the part, or of a first_of the first that the request has.
func (p *keyPart) choose(r *request) part {
	if p.Kind != policy.KeyFirstOf {
		text, present := p.read(r)
		return part{text: text, present: present}
	}
	for i := range p.of {
		if text, present := p.of[i].read(r); present {
			return part{p.of[i].label, text, true}
		}
	}
	return part{}
}

// parse reads the part from the text that part.whole gives it.
func (p *keyPart) parse(text string) (part, error) {
	if p.Kind != policy.KeyFirstOf {
		return part{text: text, present: true}, nil
	}
	labels := ""
	for i := range p.of {
		if value, found := strings.CutPrefix(text, p.of[i].label+"="); found {
			return part{p.of[i].label, value, true}, nil
		}
		labels += " or " + strconv.Quote(p.of[i].label+"=")
	}
	return part{}, errors.New("a first_of begins with what it is, " + strings.TrimPrefix(labels, " or "))
}

func (p *keyPart) read(r *request) (string, bool) {
	switch p.Kind {
	case policy.KeyHeader:
		return r.header(p.number)
	case policy.KeyClientIP:
		ip, present := r.Client()
		if !present {
			return "", false
		}
		return network(ip, p.V4Prefix, p.V6Prefix)
	case policy.KeyHost:
		return r.Host()
	case policy.KeyMethod:
		method, present := r.Method()
		return strings.ToUpper(method), present
	case policy.KeyQuery:
		value, present, _ := r.parameter(p.number)
		return value, present
	case policy.KeyCookie:
		return r.cookie(p.number)
	case policy.KeyRoute, policy.KeyJWT, policy.KeyProperty:
		return p.attribute.read(r)
	default:
		path, present := r.Path()
		if p.Segment == 0 || !present {
			return path, present
		}
		return segment(path, p.Segment)
	}
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

// network returns the network of an address, as "192.0.2.7" where the prefix is
// the whole address and "192.0.2.0/24" where it is not.
func network(ip netip.Addr, v4, v6 int) (string, bool) {
	bits := v6
	if ip.Is4() {
		bits = v4
	}
	if bits >= ip.BitLen() {
		return ip.String(), true
	}
	prefix, err := ip.Prefix(bits)
	if err != nil {
		return "", false
	}
	return prefix.String(), true
}
