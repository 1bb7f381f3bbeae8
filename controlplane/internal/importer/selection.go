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

// selection says for which requests something holds: those that match and are not
// exempt. If a policy cannot say that, whyOff has the reasons: a rule for them is off.
type selection struct {
	match  match
	exempt []match
	whyOff []string
	notes  []string
}

// cannot adds why a policy cannot say for which requests something holds.
func (s *selection) cannot(why string) { s.whyOff = append(s.whyOff, why) }

// cannotMatch adds a condition that no match can say.
func (s *selection) cannotMatch(condition string) {
	s.cannot("No match can select its requests: " + condition + ".")
}

func (s *selection) note(text string) { s.notes = append(s.notes, text) }

// and is for the requests of both selections.
func (s selection) and(other selection) selection {
	both, ok := s.match.and(other.match)
	all := selection{
		match: both, exempt: slices.Concat(s.exempt, other.exempt),
		whyOff: slices.Clone(s.whyOff), notes: slices.Concat(s.notes, other.notes),
	}
	if !ok {
		all.cannotMatch("they have two conditions on one part")
	}
	all.whyOff = append(all.whyOff, other.whyOff...)
	return all
}

// restrict adds a condition on a part of the request.
func (s *selection) restrict(p part, v pattern, inverted bool) {
	m := s.match
	if inverted {
		m = nil
	}
	if p.kind == kindHost && v.kind == exactly && withoutPort(v.text) != v.text {
		s.note("The host " + v.text + " is compared without its port here.")
	}
	if p.query {
		path, same, ok := v.ofPath()
		switch {
		case !ok:
			s.cannotMatch("Envoy compares :path and its query with " + v.text)
			return
		case !same:
			s.note("Envoy compares :path with its query. Here " + v.text + " is a path, with any query behind it.")
		}
		v = path
		p = fullPath // the pattern is now one of the path alone
	}
	switch m, ok := p.restrict(m, v); {
	case !ok:
		s.cannotMatch("they have a condition on " + p.String())
	case inverted:
		s.exempt = append(s.exempt, m)
	default:
		s.match = m
	}
}

// isEverything reports whether it is for every request.
func (s *selection) isEverything() bool { return len(s.match)+len(s.exempt)+len(s.whyOff) == 0 }

// readRouteMatch adds the conditions of a route.
func (r *reader) readRouteMatch(s *selection, o *routev3.RouteMatch, at place) {
	fold := o.GetCaseSensitive() != nil && !o.GetCaseSensitive().GetValue()
	switch v, known := r.readPattern(o, at, fold); {
	case !known:
		s.cannotMatch("their route has no known condition on the path")
	case v != pattern{wildcard, "/*"} && v != present:
		s.restrict(fullPath, v, false)
	}
	for i, h := range o.GetHeaders() {
		r.readHeaderMatcher(s, h, at.item("headers", i))
	}
	for i, m := 0, o.ProtoReflect(); i < m.Descriptor().Fields().Len(); i++ {
		fd := m.Descriptor().Fields().Get(i)
		isRead := fd.ContainingOneof() != nil || fd.Name() == "headers" || fd.Name() == "case_sensitive"
		if m.Has(fd) && !isRead {
			s.cannotMatch("their route has a condition on " + string(fd.Name()))
		}
	}
}

// readHeaderMatcher adds a condition on a header.
func (r *reader) readHeaderMatcher(s *selection, o *routev3.HeaderMatcher, at place) {
	p, ok := r.readHeaderPart(o.GetName(), at)
	if !ok {
		return
	}
	name := strings.ToLower(o.GetName())
	if o.GetTreatMissingHeaderAsEmpty() {
		s.note("In one condition Envoy takes a missing header " + name + " for an empty one. Here it is missing.")
	}
	switch asked := o.GetHeaderMatchSpecifier().(type) {
	case nil:
		s.requirePresence(p, !o.GetInvertMatch())
	case *routev3.HeaderMatcher_PresentMatch:
		s.requirePresence(p, asked.PresentMatch != o.GetInvertMatch())
	default:
		v, known := r.readPattern(o, at, false)
		if !known {
			s.cannotMatch("they have an unknown condition on the header " + name)
			return
		}
		s.requireValue(p, v, o)
	}
}

// requireValue adds the condition that a header fits a pattern, or, inverted, that it has a value that
// does not.
func (s *selection) requireValue(p part, v pattern, o *routev3.HeaderMatcher) {
	mayBeMissing := p.kind == kindHeader && !o.GetTreatMissingHeaderAsEmpty()
	if o.GetInvertMatch() && mayBeMissing {
		s.restrict(p, present, false) // a missing header fits neither the pattern nor its inversion
	}
	s.restrict(p, v, o.GetInvertMatch())
}

// requirePresence adds the condition that a header is there, or that it is not. Pseudo headers always are.
func (s *selection) requirePresence(p part, isThere bool) {
	if p.kind != kindHeader {
		return
	}
	value := pattern{kind: absent}
	if isThere {
		value = present
	}
	both, ok := s.match.and(p.matching(value))
	if !ok {
		s.cannotMatch("they have two conditions on one part")
	}
	s.match = both
}

// readPattern reads which values a RouteMatch, HeaderMatcher or StringMatcher takes. It is not known if
// the matcher says nothing of values, or says it in a way that the import does not read.
func (r *reader) readPattern(o proto.Message, at place, fold bool) (v pattern, known bool) {
	m := o.ProtoReflect()
	fd := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	if fd == nil {
		return pattern{}, false
	}
	switch value := m.Get(fd); strings.TrimSuffix(string(fd.Name()), "_match") {
	case "exact", "path":
		return stringPattern("", value.String(), "", fold), true
	case "prefix":
		return stringPattern("", value.String(), "*", fold), true
	case "suffix":
		return stringPattern("*", value.String(), "", fold), true
	case "contains":
		return stringPattern("*", value.String(), "*", fold), true
	case "path_separated_prefix":
		return pattern{orBelow, value.String()}, true
	case "safe_regex":
		return r.regex(value.Message().Interface().(*matcherv3.RegexMatcher).GetRegex(), at)
	case "string":
		text := value.Message().Interface().(*matcherv3.StringMatcher)
		return r.readPattern(text, at, text.GetIgnoreCase())
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

// exemptEarlierRoute exempts the requests of an earlier route from those of a later one, if some may be
// the same. Own is what the later route's match alone selects.
func (s *selection) exemptEarlierRoute(own, earlier *selection) {
	a, b := own.match.of(fullPath), earlier.match.of(fullPath)
	if len(a) > 0 && len(b) > 0 && a[0].apart(b[0]) {
		return
	}
	if len(earlier.whyOff) > 0 || len(earlier.exempt) > 0 {
		s.cannotMatch("an earlier route takes some of them")
		return
	}
	if len(earlier.match) > 0 {
		s.exempt = append(s.exempt, earlier.match)
	}
}
