package envoy

import (
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// readRouteMatch adds the conditions of a route.
func (r *reader) readRouteMatch(s *request.Selection, o *routev3.RouteMatch, at source.Place) {
	ignoreCase := o.GetCaseSensitive() != nil && !o.GetCaseSensitive().GetValue()
	switch v, known := r.readPattern(o, at, ignoreCase); {
	case !known:
		s.CannotMatch("their route has no known condition on the path")
	case v != request.AnyPath && v != request.Present:
		s.Require(request.FullPath.Compared(), v)
	}
	for i, h := range o.GetHeaders() {
		r.readHeaderMatcher(s, h, at.Item("headers", i))
	}
	for i, m := 0, o.ProtoReflect(); i < m.Descriptor().Fields().Len(); i++ {
		fd := m.Descriptor().Fields().Get(i)
		isRead := fd.ContainingOneof() != nil || fd.Name() == "headers" || fd.Name() == "case_sensitive"
		if m.Has(fd) && !isRead {
			s.CannotMatch("their route has a condition on " + string(fd.Name()))
		}
	}
}

// readHeaderMatcher adds a condition on a header.
func (r *reader) readHeaderMatcher(s *request.Selection, o *routev3.HeaderMatcher, at source.Place) {
	p, ok := r.readHeaderPart(o.GetName(), at)
	if !ok {
		return
	}
	name := strings.ToLower(o.GetName())
	if o.GetTreatMissingHeaderAsEmpty() {
		s.Comment("In one condition Envoy takes a missing header " + name + " for an empty one. Here it is missing.")
	}
	switch asked := o.GetHeaderMatchSpecifier().(type) {
	case nil:
		requirePresence(s, p, !o.GetInvertMatch())
	case *routev3.HeaderMatcher_PresentMatch:
		requirePresence(s, p, asked.PresentMatch != o.GetInvertMatch())
	default:
		v, known := r.readPattern(o, at, false)
		if !known {
			s.CannotMatch("they have an unknown condition on the header " + name)
			return
		}
		requireValue(s, p, v, o)
	}
}

// readHeaderPart is the part for a header that a file names. It adds a problem if no header has that name.
func (r *reader) readHeaderPart(name string, at source.Place) (p request.Compared, ok bool) {
	p, err := request.HeaderNamed(name)
	if err != nil {
		r.Fail(at, err.Error())
	}
	return p, err == nil
}

// requireValue adds the condition that a header fits a pattern, or, inverted, that it has a value that
// does not.
func requireValue(s *request.Selection, p request.Compared, v request.Pattern, o *routev3.HeaderMatcher) {
	mayBeMissing := p.Kind == request.KindHeader && !o.GetTreatMissingHeaderAsEmpty()
	if o.GetInvertMatch() && mayBeMissing {
		s.Require(p, request.Present) // a missing header fits neither the pattern nor its inversion
	}
	if o.GetInvertMatch() {
		s.Exclude(p, v)
	} else {
		s.Require(p, v)
	}
}

// requirePresence adds the condition that a header is there, or that it is not. Pseudo headers always are.
func requirePresence(s *request.Selection, p request.Compared, isThere bool) {
	if p.Kind != request.KindHeader {
		return
	}
	value := request.Absent
	if isThere {
		value = request.Present
	}
	s.Require(p, value)
}

// readPattern reads which values a RouteMatch, HeaderMatcher or StringMatcher takes. It is not known if
// the matcher says nothing of values, or says it in a way that the import does not read.
func (r *reader) readPattern(o proto.Message, at source.Place, ignoreCase bool) (v request.Pattern, known bool) {
	fd := patternField(o)
	if fd == nil {
		return request.Pattern{}, false
	}
	switch value := o.ProtoReflect().Get(fd); strings.TrimSuffix(string(fd.Name()), "_match") {
	case "exact", "path":
		return request.Text(value.String(), ignoreCase), true
	case "prefix":
		return request.Prefix(value.String(), ignoreCase), true
	case "suffix":
		return request.Suffix(value.String(), ignoreCase), true
	case "contains":
		return request.Containing(value.String(), ignoreCase), true
	case "path_separated_prefix":
		return request.OrBelow(value.String(), ignoreCase), true
	case "safe_regex":
		v, err := request.ParseExpression(value.Message().Interface().(*matcherv3.RegexMatcher).GetRegex())
		if err != nil {
			r.Fail(at, err.Error())
		}
		return v, err == nil
	case "string":
		text := value.Message().Interface().(*matcherv3.StringMatcher)
		return r.readPattern(text, at, text.GetIgnoreCase())
	}
	return request.Pattern{}, false
}

// patternField is the field of a matcher that is set of those that say a pattern; nil if none is.
//
//	                                        fields, without _match
//	RouteMatch     path_specifier           path, prefix, path_separated_prefix, safe_regex
//	HeaderMatcher  header_match_specifier   exact, prefix, suffix, contains, safe_regex, string
//	StringMatcher  match_pattern            exact, prefix, suffix, contains, safe_regex
func patternField(o proto.Message) protoreflect.FieldDescriptor {
	m := o.ProtoReflect()
	for _, name := range []protoreflect.Name{"path_specifier", "header_match_specifier", "match_pattern"} {
		if oneof := m.Descriptor().Oneofs().ByName(name); oneof != nil {
			return m.WhichOneof(oneof)
		}
	}
	return nil
}
