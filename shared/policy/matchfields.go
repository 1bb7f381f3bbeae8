package policy

import (
	"net/netip"
	"slices"
	"strings"
)

var matchObject = newObject("match", []field[Match]{
	texts("hosts", "host", BadHost, parseHost, func(m *Match) *[]string { return &m.Hosts }),
	texts("methods", "method", BadMethod, parseMethod, func(m *Match) *[]string { return &m.Methods }),
	{"paths", listOf(textOf("path"), 1, 0), "", readPaths},
	{"headers", Shape{Form: FormPatterns}, "", func(r *reader, v value, m *Match) { m.Headers = r.headerMatches(v) }},
	texts("client_ips", "network", BadNetwork, parseNetwork, func(m *Match) *[]netip.Prefix { return &m.ClientIPs }),
})

// texts is the row of a list of texts.
func texts[E any](name, item string, code Code, parse func(string) (E, bool), to func(*Match) *[]E) field[Match] {
	return field[Match]{name, listOf(textOf(item), 1, 0), "", func(r *reader, v value, m *Match) {
		r.eachText(v, func(at value, s string) {
			e, ok := parse(s)
			if !ok {
				r.fail(at, code)
			}
			*to(m) = append(*to(m), e)
		})
	}}
}

// commonMethods are refused in lower case: nobody means a method of that name.
var commonMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}

func parseMethod(s string) (string, bool) {
	upper := strings.ToUpper(s)
	return s, IsToken(s) && (s == upper || !slices.Contains(commonMethods, upper))
}

func readPaths(r *reader, v value, m *Match) {
	r.eachText(v, func(at value, s string) {
		if p, ok := r.pattern(at, s, parsePath, BadPath); ok {
			m.Paths = append(m.Paths, p)
		}
	})
}

func (r *reader) headerMatches(v value) (list []HeaderMatch) {
	if v.Kind == Object && len(v.Fields) == 0 {
		r.fail(v, EmptyValue)
	}
	r.eachHeader(v, IsToken, func(at value, name, s string) {
		if p, ok := r.pattern(at, s, parseHeaderValue, BadPattern); ok {
			list = append(list, HeaderMatch{Name: name, Value: p})
		}
	})
	return list
}

// eachHeader calls use with every text of an object from header names to texts;
// the names are in lower case and differ.
func (r *reader) eachHeader(v value, mayName func(string) bool, use func(at value, name, s string)) {
	if v.Kind != Object {
		r.fail(v, WrongValue)
		return
	}
	first := make(map[string]*Field, len(v.Fields))
	for i := range v.Fields {
		f := &v.Fields[i]
		name := strings.ToLower(f.Name)
		switch {
		case !IsToken(name):
			r.failName(v, f, BadHeaderName, f.Name)
			continue
		case len(name) > MaxNameBytes:
			r.failName(v, f, TooLong, itoa(MaxNameBytes))
			continue
		case !mayName(name):
			r.failName(v, f, HeaderTaken)
			continue
		case first[name] != nil:
			r.duplicate(v, f, first[name])
			continue
		}
		first[name] = f
		at := value{Place{Node: f.Value}, &textShape}
		if s, ok := r.text(at); ok {
			use(at, name, s)
		}
	}
}

// token reads a token of RFC 9110.
func (r *reader) token(v value, code Code) string {
	s, ok := r.text(v)
	if ok && !IsToken(s) {
		r.fail(v, code, s)
	} else if ok {
		r.fits(v, MaxNameBytes)
	}
	return s
}

// headerName reads a header's name given as a value.
func (r *reader) headerName(v value) string { return strings.ToLower(r.token(v, BadHeaderName)) }

// IsEmpty reports whether it holds for every request.
func (m *Match) IsEmpty() bool {
	return len(m.Hosts)+len(m.Methods)+len(m.Paths)+len(m.Headers)+len(m.ClientIPs) == 0
}
