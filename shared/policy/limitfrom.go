package policy

import (
	"math"
	"slices"
)

// requestsObject is "requests" of a limit where it is an object.
var requestsObject = newObject("requests", []field[LimitFrom]{
	{"jwt", objectOf("jwt"), "", func(r *reader, v value, n *LimitFrom) { part(KeyJWT, jwtObject)(r, v, &n.Part) }},
	{"property", listOf("segment"), "", func(r *reader, v value, n *LimitFrom) { readProperty(r, v, &n.Part) }},
	{"header", text, "", func(r *reader, v value, n *LimitFrom) { n.Part = KeyPart{Kind: KeyHeader, Name: r.headerName(v)} }},
	{"trusted", boolean, "false", func(r *reader, v value, _ *LimitFrom) { r.boolean(v) }},
	{"default", required(integer(0, math.MaxUint32)), "", func(r *reader, v value, n *LimitFrom) { n.Default = uint32(r.integer(v)) }},
	{"max", required(integer(1, math.MaxUint32)), "", func(r *reader, v value, n *LimitFrom) { n.Max = uint32(r.integer(v)) }},
})

func readRequests(r *reader, v value, l *writtenLimit) {
	if v.node.Kind != Object {
		v.shape = required(integer(0, math.MaxUint32))
		l.Limit = uint32(r.integer(v))
		return
	}
	var n LimitFrom
	if before := r.count(); !readObject(r, v, requestsObject, &n) || r.count() > before {
		return
	}
	places := 0
	for _, name := range [...]string{"jwt", "property", "header"} {
		if v.has(name) {
			places++
		}
	}
	trusted := v.node.Member("trusted")
	isTrusted := trusted != nil && trusted.Text == "true"
	switch {
	case places == 0:
		r.fail(v, NumberWithoutPlace)
	case places > 1:
		r.fail(v, NumberManyPlaces)
	case !isTrusted && !n.Part.isVouchedFor():
		r.fail(v, NumberUntrusted, n.Part.Label())
	case isTrusted && n.Part.isVouchedFor():
		r.fail(v.field("trusted"), NumberTrusted, n.Part.Label())
	}
	if n.Default > n.Max {
		r.fail(v.field("default"), NumberDefault, itoa(int64(n.Default)), itoa(int64(n.Max)))
	}
	l.Limit, l.From = n.Default, &n
}

// ofProxy are the first segments of properties that configuration and filters of the
// proxy set.
var ofProxy = [...]string{
	"metadata", "filter_state", "xds", "node", "route_metadata", "cluster_metadata", "listener_metadata",
}

// isVouchedFor reports whether somebody else than the client says what the part is.
func (p *KeyPart) isVouchedFor() bool {
	return p.Origin() == Verified || p.Kind == KeyProperty && len(p.Path) > 0 && slices.Contains(ofProxy[:], p.Path[0])
}

// Most is the most units of the limit that any request may say: without a LimitFrom those of the policy.
func (l *Limit) Most() uint32 { return most(l.From, l.Limit) }

func (l *writtenLimit) most() uint32 { return most(l.From, l.Limit) }

func most(n *LimitFrom, written uint32) uint32 {
	if n != nil {
		return n.Max
	}
	return written
}

// placeOfMost is where a limit has its most.
func (l *writtenLimit) placeOfMost(limit value) value {
	at := limit.inObject("requests")
	if l.From != nil {
		return at.field("max")
	}
	return at
}

// same reports whether two limits have the same number for each request.
func (n *LimitFrom) same(m *LimitFrom) bool {
	if n == nil || m == nil {
		return n == m
	}
	return n.Default == m.Default && n.Max == m.Max &&
		slices.Equal(appendDefinitions(nil, []KeyPart{n.Part}), appendDefinitions(nil, []KeyPart{m.Part}))
}
