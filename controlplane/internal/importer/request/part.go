package request

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Part is a part of a request, for a rule's key or match. A limiter may compare another value than the policy has: of
// /a?b all of that text, and of the client 10.1.2.3 the network 10.0.0.0/8. Two fields say so. To the policy,
// PathWithQuery and FullPath are one part, and so are MaskedIP and ClientIP:
//
//	field    id and Is   translate              IsNever
//	query    pass over   cuts the query         passes over
//	masked   pass over   passes over            allows a network of any length
type Part struct {
	Kind   PartKind
	Name   string   // of a header, query parameter or cookie
	V4, V6 int      // of client_ip: the lengths of prefixes that count together
	Path   []string // of a property

	// What the values of the limiter have and those of the policy have not.
	query  bool // the query too
	masked bool // only some bits of the address
}

// PartKind is what a part is, as the policy names it.
type PartKind string

// The kinds of parts.
const (
	KindHeader   PartKind = "header"
	KindQuery    PartKind = "query"
	KindCookie   PartKind = "cookie"
	KindClientIP PartKind = "client_ip"
	KindPath     PartKind = "path"
	kindMethod   PartKind = "method"
	KindHost     PartKind = "host"
	KindProperty PartKind = "property"
)

// The parts that have no name. Two are for values that a limiter compares and a policy has no part for: PathWithQuery
// for /a?b, and MaskedIP for 10.0.0.0/8.
var (
	ClientIP      = Part{Kind: KindClientIP, V4: 32, V6: 128}
	MaskedIP      = Part{Kind: KindClientIP, V4: 32, V6: 128, masked: true}
	FullPath      = Part{Kind: KindPath}
	PathWithQuery = Part{Kind: KindPath, query: true}
	Method        = Part{Kind: kindMethod}
	Host          = Part{Kind: KindHost}

	ConnectionID = Part{Kind: KindProperty, Path: []string{"connection", "id"}}
)

// HeaderPart is the part for a header or for one of Envoy's pseudo headers.
func HeaderPart(name string) Part {
	name = strings.ToLower(name)
	switch name {
	case ":path":
		return PathWithQuery
	case ":method":
		return Method
	case ":authority", "host":
		return Host
	}
	return Part{Kind: KindHeader, Name: name}
}

// HeaderNamed is the part for a header that a file names, or why there is none.
func HeaderNamed(name string) (Part, error) {
	p := HeaderPart(name)
	if p.Kind == KindHeader && !IsHeaderName(p.Name) {
		return Part{}, errors.New(strconv.Quote(name) + " is not the name of a header")
	}
	return p, nil
}

// IsHeaderName reports whether a header may have this name, in lower case.
func IsHeaderName(name string) bool { return len(name) <= policy.MaxNameBytes && policy.IsToken(name) }

// partID tells parts apart in a match, which has a list of patterns for each. It is the same for client
// addresses of all prefix lengths, and for a path with and without its query.
type partID struct {
	kind PartKind
	name string // of a header
}

func (p Part) id() partID { return partID{p.Kind, p.Name} }

// Is reports whether two parts are the same part of a request.
func (p Part) Is(q Part) bool {
	return p.Kind == q.Kind && p.Name == q.Name && p.V4 == q.V4 && p.V6 == q.V6 && slices.Equal(p.Path, q.Path)
}

// String names the part in messages.
func (p Part) String() string { return strings.TrimSpace(string(p.Kind) + " " + p.Name) }

// MarshalYAML writes the part as an item of a rule's key.
func (p Part) MarshalYAML() (any, error) {
	switch p.Kind {
	case KindClientIP:
		return map[PartKind]any{p.Kind: map[string]int{"v4_prefix": p.V4, "v6_prefix": p.V6}}, nil
	case KindPath:
		return map[PartKind]any{p.Kind: "full"}, nil
	case KindProperty:
		return map[PartKind]any{p.Kind: p.Path}, nil
	case KindHeader, KindQuery, KindCookie:
		return map[PartKind]any{p.Kind: p.Name}, nil
	case kindMethod, KindHost:
	}
	return string(p.Kind), nil
}

// MayBeMissing reports whether a request may lack the part.
func (p Part) MayBeMissing() bool {
	return p.Kind == KindHeader || p.Kind == KindQuery || p.Kind == KindCookie
}

// IsNever reports whether no request has a value of the part that fits the pattern.
func (p Part) IsNever(v Pattern) bool {
	switch {
	case p.Kind == KindPath:
		return (v.Kind == Exactly || v.Kind == WithWildcards) && !v.beginsPath() && v.Text != "*" // the path of OPTIONS
	case p.Kind == KindClientIP && v.Kind == Exactly:
		network, ok := NetworkOf(v.Text)
		bits := p.V6
		if network.Addr().Is4() {
			bits = p.V4
		}
		return !ok || !p.masked && network.Bits() != bits
	}
	return false
}

// translation is a pattern as a policy has it.
type translation struct {
	Pattern
	comment string // what else than the limiter the policy compares; empty if it compares the same
	why     string // the condition that a policy cannot say, so that there is no pattern; empty if it can
}

// translate makes the pattern that does the same in a policy, where paths come without their query, hosts without a
// port, and addresses in one spelling.
//
//	part            pattern        Pattern    comment                 why
//	Host            a.example:80   a.example  compared without port
//	PathWithQuery   /a             /a         with any query behind
//	PathWithQuery   /a?b                                              it is about the query
//	ClientIP        10.0.0.1/32    10.0.0.1
func (p Part) translate(v Pattern) translation {
	made := translation{Pattern: v}
	switch {
	case p.Kind == KindPath:
		return p.translatePath(v)
	case v.Kind != Exactly:
	case p.Kind == KindHost:
		made.Text = WithoutPort(v.Text)
		if made.Text != v.Text {
			made.comment = "The host " + v.Text + " is compared without its port here."
		}
	case p.Kind == KindClientIP:
		text, ok := NetworkText(v.Text)
		if !ok {
			made.why = p.someCondition()
			break
		}
		made.Text = text
	}
	return made
}

// translatePath is translate for a path.
func (p Part) translatePath(v Pattern) translation {
	made := translation{Pattern: v}
	if p.query {
		cut, sameWithAnyQuery, ok := v.ofPath()
		switch {
		case !ok:
			return translation{why: "Envoy compares :path and its query with " + v.Text}
		case !sameWithAnyQuery:
			made.comment = "Envoy compares :path with its query. Here " + v.Text + " is a path, with any query behind it."
		}
		made.Pattern = cut
	}
	isText := made.Kind != AnyValue && made.Kind != ByExpression
	if isText && (!made.beginsPath() || strings.Contains(made.Text, "?")) {
		made.why = p.someCondition()
	}
	return made
}

// someCondition is the condition that a policy cannot say, if there is no more to say of it.
func (p Part) someCondition() string { return "they have a condition on " + p.String() }

// AsOverride writes a pattern over the part as overrides have it. It is not ok if no override can say it.
func (p Part) AsOverride(v Pattern) (text string, ok bool) {
	made := p.translate(v)
	return made.notation(p), made.why == ""
}
