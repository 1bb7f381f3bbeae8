package importer

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
)

// scope says for which requests something holds: those that match and are not
// exempt. What a policy cannot say of them is in unknown; such a rule is off.
type scope struct {
	match   match
	exempt  []match
	unknown []string
	notes   []string
}

// cannot adds why a policy cannot say for which requests something holds.
func (s *scope) cannot(why string) { s.unknown = append(s.unknown, why) }

func (s *scope) note(text string) { s.notes = append(s.notes, text) }

// and is for the requests of both scopes.
func (s scope) and(other scope) scope {
	both, ok := s.match.and(other.match)
	all := scope{both, slices.Concat(s.exempt, other.exempt), slices.Clone(s.unknown), slices.Concat(s.notes, other.notes)}
	if !ok {
		all.cannot("It is for requests with two conditions on one part, and a match holds one.")
	}
	all.unknown = append(all.unknown, other.unknown...)
	return all
}

// restrict adds a condition on a part of the request.
func (s *scope) restrict(p part, v pattern, inverted bool) {
	m := s.match
	if inverted {
		m = nil
	}
	if p.kind == "host" && v.kind == exactly && withoutPort(v.text) != v.text {
		s.note("The host " + v.text + " is compared without its port here.")
	}
	if p.query {
		path, same, ok := v.ofPath()
		switch {
		case !ok:
			s.cannot("Envoy compares :path with its query, and paths come without it here: they cannot say " + v.text + ".")
			return
		case !same:
			s.note("Envoy compares :path with its query. Here " + v.text + " is a path, with any query behind it.")
		}
		v = path
	}
	switch m, ok := p.restrict(m, v); {
	case !ok:
		s.cannot("A match cannot say a condition on " + p.String() + ", or not twice.")
	case inverted:
		s.exempt = append(s.exempt, m)
	default:
		s.match = m
	}
}

// isEverything reports whether it is for every request.
func (s *scope) isEverything() bool { return len(s.match)+len(s.exempt)+len(s.unknown) == 0 }

// readRouteMatch adds the conditions of a route.
func (r *reader) readRouteMatch(s *scope, o *routev3.RouteMatch, at place) {
	fold := o.GetCaseSensitive() != nil && !o.GetCaseSensitive().GetValue()
	switch v, known := r.readPattern(o, at, fold); {
	case !known || v.kind == anyValue:
		s.cannot("The import cannot translate the condition of its route on the path.")
	case v != pattern{wildcard, "/*"} && v != pattern{wildcard, "*"}:
		s.restrict(fullPath, v, false)
	}
	for i, h := range o.GetHeaders() {
		r.readHeaderMatcher(s, h, at.item("headers", i))
	}
	for i, m := 0, o.ProtoReflect(); i < m.Descriptor().Fields().Len(); i++ {
		fd := m.Descriptor().Fields().Get(i)
		isRead := fd.ContainingOneof() != nil || fd.Name() == "headers" || fd.Name() == "case_sensitive"
		if m.Has(fd) && !isRead {
			s.cannot("Its route has a condition on " + string(fd.Name()) + ", and a match has none.")
		}
	}
}

// readHeaderMatcher adds a condition on a header.
func (r *reader) readHeaderMatcher(s *scope, o *routev3.HeaderMatcher, at place) {
	p, ok := r.headerPart(o.GetName(), at)
	if !ok {
		return
	}
	name := strings.ToLower(o.GetName())
	v, known := r.readPattern(o, at, false)
	presence, isPresence := o.GetHeaderMatchSpecifier().(*routev3.HeaderMatcher_PresentMatch)
	inverted, missingIsEmpty := o.GetInvertMatch(), o.GetTreatMissingHeaderAsEmpty()
	if missingIsEmpty {
		s.note("In one condition Envoy takes a missing header " + name + " for an empty one. Here it is missing.")
	} else if inverted && p.kind == "header" && !isPresence {
		s.restrict(p, pattern{wildcard, "*"}, false) // a header that is missing fits neither way
	}
	switch {
	case !known:
		s.cannot("The import cannot translate a condition on the header " + name + ".")
	case v.kind == anyValue && p.kind != "header":
	case v.kind == anyValue:
		isThere := (!isPresence || presence.PresentMatch) != inverted
		s.requirePresence(p, isThere)
	case inverted && p.kind == "header" && s.match[p.String()] != nil && !missingIsEmpty:
		s.exempt = append(s.exempt, match{p.String(): {v.in(p)}})
	default:
		s.restrict(p, v, inverted)
	}
}

// requirePresence adds the condition that a header is there, or that it is not.
func (s *scope) requirePresence(p part, isThere bool) {
	value := "!"
	if isThere {
		value = "*"
	}
	both, ok := s.match.and(match{p.String(): {value}})
	if !ok {
		s.cannot("There are two conditions on the " + p.String() + ", and a match holds one.")
	}
	s.match = both
}

// readPattern reads what a RouteMatch, HeaderMatcher or StringMatcher wants of a text: any where
// it wants nothing of it, or where a header only has to be there.
func (r *reader) readPattern(o proto.Message, at place, fold bool) (v pattern, known bool) {
	m := o.ProtoReflect()
	fd := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	if fd == nil {
		return pattern{}, true
	}
	switch value := m.Get(fd); strings.TrimSuffix(string(fd.Name()), "_match") {
	case "present":
		return pattern{}, true
	case "exact", "path":
		return stringPattern("", value.String(), "", fold), true
	case "prefix":
		return stringPattern("", value.String(), "*", fold), true
	case "suffix":
		return stringPattern("*", value.String(), "", fold), true
	case "contains":
		return stringPattern("*", value.String(), "*", fold), true
	case "path_separated_prefix":
		return pattern{expression, regexp.QuoteMeta(value.String()) + below}, true
	case "safe_regex":
		return r.regex(value.Message().Interface().(*matcherv3.RegexMatcher).GetRegex(), at)
	case "string":
		text := value.Message().Interface().(*matcherv3.StringMatcher)
		v, known := r.readPattern(text, at, text.GetIgnoreCase())
		return v, known && v.kind != anyValue
	}
	return pattern{}, false
}

// regex is an expression of a field; a problem where it is none.
func (r *reader) regex(text string, at place) (v pattern, ok bool) {
	if _, err := regexp.Compile(text); err != nil || text == "" {
		r.fail(at, strconv.Quote(text)+" is not a regular expression of RE2")
		return pattern{}, false
	}
	return pattern{expression, text}, true
}

// stringPattern has a * where anything may stand, before or behind the text.
func stringPattern(before, text, behind string, fold bool) pattern {
	hasCase := strings.ToLower(text) != strings.ToUpper(text)
	fold = fold && hasCase
	switch {
	case before+behind == "" && !fold:
		return pattern{exactly, text}
	case !fold && !strings.Contains(text, "*"):
		return pattern{wildcard, before + text + behind}
	}
	re := strings.Replace(before, "*", ".*", 1) + regexp.QuoteMeta(text) + strings.Replace(behind, "*", ".*", 1)
	if fold {
		re = "(?i)" + re
	}
	return pattern{expression, re}
}

// leaveOut takes the requests of an earlier route out of a later one, if they
// may be the same.
func (s *scope) leaveOut(own, earlier *scope) {
	a, b := own.match["path"], earlier.match["path"]
	if len(a) > 0 && len(b) > 0 && pathsApart(a[0], b[0]) {
		return
	}
	if len(earlier.unknown) > 0 || len(earlier.exempt) > 0 {
		s.cannot("An earlier route takes some of these requests, by conditions that an exempt cannot say.")
		return
	}
	if len(earlier.match) > 0 {
		s.exempt = append(s.exempt, earlier.match)
	}
}

// below is the end of an expression for a path and those below it.
const below = "(/.*)?"

// pathWithin reports whether all paths that fit one pattern fit another, where
// both are known.
func pathWithin(a, b string) bool { return shapeOf(a).within(shapeOf(b)) }

// pathsApart reports whether no path fits both patterns. Of most expressions it
// does not know.
func pathsApart(a, b string) bool {
	one, two := shapeOf(a), shapeOf(b)
	return one.begin != "" && two.begin != "" && !one.within(two) && !two.within(one)
}

// pathShape is a pattern, the text that all its paths begin with, and * where
// anything may follow, / where only paths below may. The text is empty for other
// expressions.
type pathShape struct {
	pattern, begin string
	end            byte
}

func (inner pathShape) within(outer pathShape) bool {
	same := inner.pattern == outer.pattern
	switch outer.end {
	case '*':
		return same || inner.begin != "" && strings.HasPrefix(inner.begin, outer.begin)
	case '/':
		isBelow := strings.HasPrefix(inner.begin, outer.begin+"/")
		return same || isBelow || inner.begin == outer.begin && !strings.HasSuffix(inner.pattern, "*")
	}
	return same
}

func shapeOf(text string) pathShape {
	if text[0] == '~' {
		begin, ok := unquoted(strings.TrimSuffix(text[1:], below))
		if !ok || !strings.HasSuffix(text, below) {
			return pathShape{pattern: text}
		}
		return pathShape{text, begin, '/'}
	}
	if plain, isPrefix := strings.CutSuffix(text, "*"); isPrefix && text[0] != '=' {
		return pathShape{text, plain, '*'}
	}
	return pathShape{text, strings.TrimPrefix(text, "="), '='}
}

// unquoted is the text of which regexp.QuoteMeta makes an expression; it is not ok if that has
// an operator. Each route is compared with each before it, and to compile it would take long.
func unquoted(expression string) (text string, ok bool) {
	plain := make([]byte, 0, len(expression))
	for i := 0; i < len(expression); i++ {
		switch strings.IndexByte(`\.+*?()|[]{}^$`, expression[i]) {
		case -1:
		case 0:
			if i++; i == len(expression) || isAlphanumeric(expression[i]) {
				return "", false
			}
		default:
			return "", false
		}
		plain = append(plain, expression[i])
	}
	return string(plain), true
}

func isAlphanumeric(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }
