package envoy

import (
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// routeSelection is for the requests that a route's match takes. Only a part of a configuration has none: it is for
// every request.
func (r *reader) routeSelection(n *policy.Node, at source.Place) (s request.Selection) {
	envoyfile.RefuseTyposOfRoute(r.Findings, n, at)
	if match := source.FieldOf(n, "match"); match != nil {
		r.readRouteMatch(&s, decode[*routev3.RouteMatch](r, match, at.In("match")), at.In("match"))
	}
	return s
}

// readRouteMatch adds the conditions of a route.
func (r *reader) readRouteMatch(s *request.Selection, o *routev3.RouteMatch, at source.Place) {
	switch pattern, known := r.readPathPattern(o, at); {
	case !known: // there is none in the match of a route that an EnvoyFilter names
		s.TurnOff(request.NoMatch("their route has no known condition on the path"))
	case pattern != request.AnyPath && pattern != request.Present:
		s.Require(request.FullPath.Value(), pattern)
	}
	for i, h := range o.GetHeaders() {
		r.readHeaderMatcher(s, h, at.Item("headers", i))
	}
	for i, m := 0, o.ProtoReflect(); i < m.Descriptor().Fields().Len(); i++ {
		fd := m.Descriptor().Fields().Get(i)
		isRead := fd.ContainingOneof() != nil || fd.Name() == "headers" || fd.Name() == "case_sensitive"
		if m.Has(fd) && !isRead {
			s.TurnOff(request.NoMatch("their route has a condition on " + string(fd.Name())))
		}
	}
}

// readHeaderMatcher adds a condition on a header.
func (r *reader) readHeaderMatcher(s *request.Selection, o *routev3.HeaderMatcher, at source.Place) {
	value, ok := r.readHeaderName(o.GetName(), at)
	if !ok {
		return
	}
	switch asked := o.GetHeaderMatchSpecifier().(type) {
	case nil:
		requirePresence(s, value, o, !o.GetInvertMatch())
	case *routev3.HeaderMatcher_PresentMatch:
		requirePresence(s, value, o, asked.PresentMatch != o.GetInvertMatch())
	default:
		pattern, known := r.readHeaderPattern(o, at)
		switch {
		case !known:
			s.TurnOff(request.NoMatch("they have an unknown condition on the header " + strings.ToLower(o.GetName())))
		case pattern == request.Present && !o.GetInvertMatch():
			requirePresence(s, value, o, true)
		default:
			requirePattern(s, value, pattern, o)
		}
	}
}

// readHeaderName is the value of a header that a file names. It adds a problem if no header has that name.
func (r *reader) readHeaderName(name string, at source.Place) (value request.Value, ok bool) {
	value, err := request.HeaderNamed(name)
	if err != nil {
		r.Fail(at, err.Error())
	}
	return value, err == nil
}

// requirePattern adds the condition that a header fits a pattern, or, inverted, that it has a value that does not. With
// treat_missing_header_as_empty a missing header fits where an empty one does: exemptions say that, and no match does.
func requirePattern(
	s *request.Selection, value request.Value, pattern request.Pattern, o *routev3.HeaderMatcher,
) {
	mayBeMissing := value.Part.Kind == request.KindHeader
	isEmpty := o.GetTreatMissingHeaderAsEmpty() // if it is missing
	missingFits := mayBeMissing && isEmpty && pattern.Matches("")
	switch {
	case o.GetInvertMatch():
		if mayBeMissing && !isEmpty {
			s.Require(value, request.Present) // a missing header fits neither the pattern nor its inversion
		}
		s.ExemptFitting(value, pattern)
		if missingFits {
			s.ExemptFitting(value, request.Absent)
		}
	case missingFits:
		s.TurnOff(request.NoMatch("they have an empty header " + value.Part.Name + " or none"))
	default:
		s.Require(value, pattern)
	}
}

// requirePresence adds the condition that a header is there, or that it is not. Pseudo headers always are, and so are
// those of which Envoy takes a missing one for an empty one.
func requirePresence(s *request.Selection, value request.Value, o *routev3.HeaderMatcher, isThere bool) {
	name := strings.ToLower(o.GetName())
	switch isPseudo := value.Part.Kind != request.KindHeader; {
	case isThere && (isPseudo || o.GetTreatMissingHeaderAsEmpty()): // no condition
	case isThere:
		s.Require(value, request.Present)
	case isPseudo:
		s.TurnOff(request.NoMatch("they lack " + name + ", which every request has"))
	case o.GetTreatMissingHeaderAsEmpty():
		s.TurnOff(request.NoMatch("they lack " + name + ", and a missing one counts as an empty one there"))
	default:
		s.Require(value, request.Absent)
	}
}

// readPathPattern reads which paths a match takes. It is not known if the match says nothing of the path, or says it in
// a way that the import does not read.
func (r *reader) readPathPattern(o *routev3.RouteMatch, at source.Place) (p request.Pattern, known bool) {
	ignoreCase := o.GetCaseSensitive() != nil && !o.GetCaseSensitive().GetValue()
	switch m := o.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		return request.Text(m.Path, ignoreCase), true
	case *routev3.RouteMatch_Prefix:
		return request.Prefix(m.Prefix, ignoreCase), true
	case *routev3.RouteMatch_PathSeparatedPrefix:
		return request.OrBelow(m.PathSeparatedPrefix, ignoreCase), true
	case *routev3.RouteMatch_SafeRegex:
		return r.readExpression(m.SafeRegex, at)
	}
	return request.Pattern{}, false
}

// readHeaderPattern reads which values of a header a matcher takes.
//
//nolint:staticcheck // most of these are deprecated, and still in use
func (r *reader) readHeaderPattern(o *routev3.HeaderMatcher, at source.Place) (p request.Pattern, known bool) {
	switch m := o.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_ExactMatch:
		if m.ExactMatch == "" { // any value is equal to this, unlike that of a StringMatcher
			return request.Present, true
		}
		return request.Text(m.ExactMatch, false), true
	case *routev3.HeaderMatcher_PrefixMatch:
		return request.Prefix(m.PrefixMatch, false), true
	case *routev3.HeaderMatcher_SuffixMatch:
		return request.Suffix(m.SuffixMatch, false), true
	case *routev3.HeaderMatcher_ContainsMatch:
		return request.Containing(m.ContainsMatch, false), true
	case *routev3.HeaderMatcher_SafeRegexMatch:
		return r.readExpression(m.SafeRegexMatch, at)
	case *routev3.HeaderMatcher_StringMatch:
		return r.readStringMatcher(m.StringMatch, at)
	}
	return request.Pattern{}, false
}

func (r *reader) readStringMatcher(o *matcherv3.StringMatcher, at source.Place) (p request.Pattern, known bool) {
	switch m := o.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return request.Text(m.Exact, o.GetIgnoreCase()), true
	case *matcherv3.StringMatcher_Prefix:
		return request.Prefix(m.Prefix, o.GetIgnoreCase()), true
	case *matcherv3.StringMatcher_Suffix:
		return request.Suffix(m.Suffix, o.GetIgnoreCase()), true
	case *matcherv3.StringMatcher_Contains:
		return request.Containing(m.Contains, o.GetIgnoreCase()), true
	case *matcherv3.StringMatcher_SafeRegex:
		return r.readExpression(m.SafeRegex, at)
	}
	return request.Pattern{}, false
}

// readExpression reads a regular expression. One that cannot be read is a problem, and not known.
func (r *reader) readExpression(o *matcherv3.RegexMatcher, at source.Place) (p request.Pattern, known bool) {
	p, err := request.ParseExpression(o.GetRegex())
	if err != nil {
		r.Fail(at, err.Error())
	}
	return p, err == nil
}
