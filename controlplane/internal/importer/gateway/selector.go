package gateway

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// selectorReader adds what the selectors of a rule select to its descriptor.
type selectorReader struct {
	*draft.Findings
	sent *descriptor.Descriptor
}

// readSelector adds a selector's conditions and parts of keys.
func (r *selectorReader) readSelector(o selector, at source.Place) {
	for i, h := range o.Headers {
		at := at.Item("headers", i)
		p, err := request.HeaderNamed(h.Name)
		if err != nil {
			r.Fail(at, err.Error())
			continue
		}
		r.readCondition(p, h, at)
	}
	r.readMethods(o.Methods, at)
	for i, q := range o.Query {
		at := at.Item("queryParams", i)
		if q.Name == "" {
			r.Fail(at, "a query parameter needs a name")
		}
		r.readCondition(request.Part{Kind: request.KindQuery, Name: q.Name}.Compared(), q, at)
	}
	if o.Path != nil {
		path := *o.Path
		path.Type = cmp.Or(path.Type, "PathPrefix")
		isEveryPath := path.Type == "PathPrefix" && path.Value == "/" && !path.Invert // so it is no condition
		if !isEveryPath {
			r.readCondition(request.FullPath.Compared(), path, at.In("path"))
		}
	}
	if o.SourceCIDR != nil {
		r.readCondition(request.ClientIP.Compared(), *o.SourceCIDR, at.In("sourceCIDR"))
	}
}

// readMethods adds the condition that a request has any of some methods.
func (r *selectorReader) readMethods(list []condition, at source.Place) {
	var methods []string
	for i, m := range list {
		switch {
		case m.Invert && len(list) > 1:
			r.sent.CannotMatch("they have one of several methods, and not another")
		case m.Invert:
			r.sent.Exclude(request.Method.Compared(), request.Exact(m.Value))
		case request.HasOnly(m.Value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
			methods = append(methods, m.Value)
		default:
			r.Fail(at.Item("methods", i), "must be a method such as GET, not "+strconv.Quote(m.Value))
		}
	}
	if methods != nil {
		r.sent.NarrowTo(request.Selection{Match: request.Method.Matching(request.ExactAll(methods)...)})
	}
}

// readCondition adds one condition: on a part of the request, or that each value of the part counts for itself. A
// network that is Distinct has both: each of its addresses counts for itself.
func (r *selectorReader) readCondition(p request.Compared, o condition, at source.Place) {
	if o.Type == "Distinct" {
		r.sent.Entries = append(r.sent.Entries, descriptor.Entry{Key: string(p.Kind) + p.Name, Part: p})
		if o.Value == "" {
			return
		}
	}
	v, ok := r.readPattern(p, o, at)
	switch {
	case !ok:
	case o.Invert:
		r.sent.Exclude(p, v)
	default:
		r.sent.Require(p, v)
	}
}

// readPattern reads the pattern of a condition. It is not ok, and a problem, if there is none.
func (r *selectorReader) readPattern(p request.Compared, o condition, at source.Place) (v request.Pattern, ok bool) {
	isText := o.Type == "Exact" || o.Type == "" || o.Type == "Distinct"
	switch {
	case isText && p.Kind == request.KindClientIP:
		_, err := netip.ParsePrefix(o.Value)
		if err != nil {
			r.Fail(at, "value must be a network such as 10.0.0.0/8, not "+strconv.Quote(o.Value))
		}
		return request.Exact(o.Value), err == nil
	case isText:
		return request.Exact(o.Value), true
	case o.Type == "PathPrefix":
		return request.OrBelow(strings.TrimSuffix(o.Value, "/"), false), true
	case o.Type == "RegularExpression":
		v, err := request.ParseExpression(o.Value)
		if err != nil {
			r.Fail(at, err.Error())
		}
		return v, err == nil
	}
	r.Fail(at, "type must be Exact, Distinct, PathPrefix or RegularExpression, not "+strconv.Quote(o.Type))
	return request.Pattern{}, false
}
