package request

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// parameter is a parameter of the query.
type parameter struct {
	named
	doubtful bool
}

// ParameterNumber returns the number of a query parameter.
func (r *Request) ParameterNumber(name string) int {
	for i := range r.parameters {
		if r.parameters[i].name == name {
			return i
		}
	}
	r.parameters = append(r.parameters, parameter{named: named{name: name}})
	return len(r.parameters) - 1
}

// Parameter returns the first value of a query parameter, and whether some upstream
// may read another one.
func (r *Request) Parameter(number int) (value string, present, doubtful bool) {
	p := &r.parameters[number]
	if !r.knows(&p.lazy) {
		r.readTarget()
		value, present, doubtful := parameterIn(r.query, p.name)
		r.set(&p.lazy, value, present)
		p.doubtful = doubtful
	}
	return p.value, p.present, p.doubtful
}

// parameterIn returns the first value of a query's parameter. A parameter without "="
// is present and empty. It is doubtful with a further, other value, and where only
// some upstreams find it: by a name that isAlike, or where they separate by ";" too.
func parameterIn(query, name string) (first string, present, doubtful bool) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, _ := strings.Cut(pair, "=")
		if key = policy.UnescapeQuery(key); key == name {
			value = policy.UnescapeQuery(value)
			doubtful = doubtful || present && value != first
			if !present {
				first, present = value, true
			}
			continue
		}
		for more := true; more && !doubtful; {
			var part string
			part, pair, more = strings.Cut(pair, ";")
			key, _, _ = strings.Cut(part, "=")
			doubtful = isAlike(policy.UnescapeQuery(key), name)
		}
	}
	return first, present, doubtful
}

// isAlike reports whether some upstreams take a name in a query for another: without
// regard to case (ASP.NET), as a list, "name[]" (PHP, Rails, qs), or as PHP spells a
// variable.
func isAlike(key, name string) bool {
	key = strings.Trim(key, blanks)
	if len(key) < len(name) || len(key) > len(name) && key[len(name)] != '[' {
		return false
	}
	for i := range len(name) {
		if folded(key[i]) != folded(name[i]) {
			return false
		}
	}
	return true
}

func folded(c byte) byte {
	switch {
	case c >= 'A' && c <= 'Z':
		return c + 'a' - 'A'
	case c == '.', c == ' ', c == '[':
		return '_'
	}
	return c
}
