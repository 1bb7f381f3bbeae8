package policy

import (
	"errors"
	"math"
	"slices"
	"strconv"
)

// requestsObject is "requests" of a limit where it is an object.
var requestsObject = newObject("requests", []field[LimitFrom]{
	{"jwt", objectOf("jwt"), "", func(r *reader, v value, n *LimitFrom) {
		n.Part = KeyPart{Kind: KeyJWT}
		readObject(r, v, jwtObject, &n.Part)
	}},
	{"property", segments, "", func(r *reader, v value, n *LimitFrom) {
		n.Part = KeyPart{Kind: KeyProperty}
		readProperty(r, v, &n.Part)
	}},
	{"header", token, "", func(r *reader, v value, n *LimitFrom) { n.Part = KeyPart{Kind: KeyHeader, Name: r.headerName(v)} }},
	{"trusted", boolean, "false", func(r *reader, v value, _ *LimitFrom) { r.boolean(v) }},
	{"default", required(integer(0, math.MaxUint32)), "", func(r *reader, v value, n *LimitFrom) { n.Default = uint32(r.integer(v)) }},
	{"max", required(integer(1, math.MaxUint32)), "", func(r *reader, v value, n *LimitFrom) { n.Max = uint32(r.integer(v)) }},
})

var requests = choice("requests", required(integer(0, math.MaxUint32)), objectOf("requests"))

func readRequests(r *reader, v value, l *writtenLimit) {
	if v.Kind != Object {
		v.shape = &requests.Any[0]
		l.Window.Limit = uint32(r.integer(v))
		return
	}
	var n LimitFrom
	if !readSound(r, v, requestsObject, &n) {
		return
	}
	trusted := v.Member("trusted")
	isTrusted := trusted != nil && trusted.Text == "true"
	switch places := v.hasOf("jwt", "property", "header"); {
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
	l.Window.Limit, l.From = n.Default, &n
}

// Say is the limit of a request that says n.
func (f *LimitFrom) Say(n uint32) Said {
	if n > f.Max {
		return Said{f.Max, SaidMore}
	}
	return Said{n, SaidSo}
}

// ParseLimits reads the limits that a request would say, as people write them for operations:
// one for each limit of the rule that requests say, in their order, or none.
func (r *Rule) ParseLimits(said []Said, texts []string) ([]Said, error) {
	said = said[:0]
	if len(texts) == 0 {
		return said, nil
	}
	want := 0
	for i := range r.Limits {
		from := r.Limits[i].From
		if from == nil {
			said = append(said, Said{})
			continue
		}
		if want++; want > len(texts) {
			continue
		}
		n, err := strconv.ParseUint(texts[want-1], 10, 32)
		if err != nil {
			return said[:0], errors.New("limit must be a whole number from 0 to 4294967295")
		}
		said = append(said, from.Say(uint32(n)))
	}
	if want != len(texts) {
		return said[:0], errors.New("requests say " + strconv.Itoa(want) + " of the limits of rule " + strconv.Quote(r.Name) + ", not " + strconv.Itoa(len(texts)))
	}
	return said, nil
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
func (l *Limit) Most() uint32 {
	if l.From != nil {
		return l.From.Max
	}
	return l.Limit
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
func (f *LimitFrom) same(g *LimitFrom) bool {
	if f == nil || g == nil {
		return f == g
	}
	return f.Default == g.Default && f.Max == g.Max &&
		slices.Equal(appendDefinitions(nil, []KeyPart{f.Part}), appendDefinitions(nil, []KeyPart{g.Part}))
}
