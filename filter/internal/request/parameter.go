package request

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ParameterNumber returns the number of a query parameter.
func (r *Request) ParameterNumber(name string) int { return numberIn(&r.parameters, name) }

// Parameter returns the first value of a query parameter. doubtful says that some upstreams
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

// parameterIn returns the first value of a query's parameter. If the query has none of that
// name, it returns the first value that some upstreams take for it: its name isAlike, or they
// separate parameters by ";" too. A parameter without "=" is present and empty. The value is
// doubtful if upstreams may read another one.
func parameterIn(query, name string) (first string, present, doubtful bool) {
	p := parameter{name: name}
	for query != "" {
		var pairs string
		pairs, query, _ = strings.Cut(query, "&")
		isFirst := true
		for more := true; more; isFirst = false {
			var pair string
			pair, pairs, more = strings.Cut(pairs, ";")
			p.take(pair, isFirst, isFirst && !more)
		}
	}
	return p.value, p.present, p.doubtful
}

// parameter is what a query has of the parameter of a name.
type parameter struct {
	name     string
	value    string
	present  bool
	isExact  bool // the value is that of a pair with exactly this name
	doubtful bool
}

// take takes a pair's value if the pair is the parameter's. Pairs were cut at ";" too, which many
// upstreams do not do: for these, only the first pair begins here, and only a whole one ends here.
func (p *parameter) take(pair string, isFirst, isWhole bool) {
	key, value, _ := strings.Cut(pair, "=")
	key = policy.UnescapeQuery(key)
	isExact := isFirst && key == p.name
	if !isExact && !isAlike(key, p.name) {
		return
	}
	value = policy.UnescapeQuery(value)
	if !isExact || !isWhole || p.present && value != p.value {
		p.doubtful = true
	}
	if !p.present || isExact && !p.isExact {
		p.value, p.isExact = value, isExact
		p.present = true
	}
}

// isAlike reports whether some upstreams take key for name: in another case (ASP.NET), with
// the escapes of IIS, as a list, "name[]" (PHP, Rails, qs), in brackets (Rack, qs), or as PHP
// spells a variable.
func isAlike(key, name string) bool {
	key = strings.Trim(key, blanks)
	return beginsAlike(key, name) || beginsAlike(strings.TrimLeft(key, "[]"), name)
}

func beginsAlike(key, name string) bool {
	rest, begins := cutAlike(key, name)
	switch {
	case !begins:
		return false
	case rest == "" || rest[0] == '[' || rest[0] == 0:
		return true
	}
	return rest[0] == ']' && strings.IndexByte(key[:len(key)-len(rest)], '[') < 0 // else it closes a bracket of the name
}

// cutAlike cuts off the name that a key begins with.
func cutAlike(key, name string) (rest string, begins bool) {
	for i := range len(name) {
		if key == "" {
			return "", false
		}
		c, size := key[0], 1
		if strings.HasPrefix(key, "%u00") && len(key) >= len("%u0070") {
			if n, err := strconv.ParseUint(key[4:6], 16, 8); err == nil {
				c, size = byte(n), len("%u0070")
			}
		}
		if folded(c) != folded(name[i]) {
			return "", false
		}
		key = key[size:]
	}
	return key, true
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
