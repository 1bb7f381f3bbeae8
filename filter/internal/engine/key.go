package engine

import (
	"net/netip"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// keyPart is a compiled policy.KeyPart.
type keyPart struct {
	policy.KeyPart
	number int // of the header; see request.number
}

// key is a request's key for one rule: its parts as text, and the bytes that
// are hashed.
type key struct {
	parts []part
	bytes []byte
}

type part struct {
	text    string
	present bool
}

func (k *key) begin() {
	k.parts, k.bytes = k.parts[:0], k.bytes[:0]
}

// add appends one part.
func (k *key) add(p part) {
	k.parts = append(k.parts, p)
	if p.present {
		k.bytes = state.AppendPart(k.bytes, p.text)
	} else {
		k.bytes = state.AppendMissing(k.bytes)
	}
}

// read takes every part from the request and reports whether all were there.
func (k *key) read(parts []keyPart, r *request) bool {
	k.begin()
	complete := true
	for i := range parts {
		text, present := parts[i].read(r)
		k.add(part{text, present})
		complete = complete && present
	}
	return complete
}

func (p *keyPart) read(r *request) (string, bool) {
	switch p.Kind {
	case policy.KeyHeader:
		return r.header(p.number)
	case policy.KeyClientIP:
		address, present := r.Client()
		if !present {
			return "", false
		}
		return network(address, p.V4Prefix, p.V6Prefix)
	case policy.KeyHost:
		return r.Host()
	case policy.KeyMethod:
		return r.Method()
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

// network returns the network of a client's address, as "192.0.2.7" where the
// prefix is the whole address and "192.0.2.0/24" where it is not.
func network(address string, v4, v6 int) (string, bool) {
	end, err := netip.ParseAddrPort(address)
	ip := end.Addr()
	if err != nil {
		if ip, err = netip.ParseAddr(address); err != nil {
			return "", false // a pipe: it has no address
		}
	}
	ip = ip.Unmap().WithZone("")
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
