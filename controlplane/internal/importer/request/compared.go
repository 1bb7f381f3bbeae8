package request

import (
	"errors"
	"strconv"
	"strings"
)

// Compared is what a limiter compares of a request: a part as a policy compares it, or another value of the part. To
// the policy the part is the same.
type Compared struct {
	Part
	as comparison
}

// comparison is which value of a part a limiter compares.
type comparison uint8

const (
	asPolicy  comparison = iota
	withQuery            // of the path /a?b all of that text
	masked               // of the client 10.1.2.3 a network of any length, as 10.0.0.0/8
)

// Compared is the part, if the limiter compares it as the policy does.
func (p Part) Compared() Compared { return Compared{p, asPolicy} }

// The values that a limiter compares and a policy does not.
var (
	PathWithQuery = Compared{FullPath, withQuery}
	MaskedIP      = Compared{ClientIP, masked}
)

// Header is what a limiter compares of a header, or of one of Envoy's pseudo headers.
func Header(name string) Compared {
	name = strings.ToLower(name)
	switch name {
	case ":path":
		return PathWithQuery
	case ":method":
		return Method.Compared()
	case ":authority", "host":
		return Host.Compared()
	}
	return Part{Kind: KindHeader, Name: name}.Compared()
}

// HeaderNamed is Header for a name that a file has, or why there is none.
func HeaderNamed(name string) (Compared, error) {
	p := Header(name)
	if p.Kind == KindHeader && !IsHeaderName(p.Name) {
		return Compared{}, errors.New(strconv.Quote(name) + " is not the name of a header")
	}
	return p, nil
}

// IsNever reports whether no request has a value of the part that fits the pattern.
func (p Compared) IsNever(v Pattern) bool {
	switch {
	case p.Kind == KindPath:
		return (v.kind == Exactly || v.kind == WithWildcards) && !v.beginsPath() && v.text != "*" // the path of OPTIONS
	case p.Kind == KindClientIP && v.kind == Exactly:
		network, ok := NetworkOf(v.text)
		bits := p.V6
		if network.Addr().Is4() {
			bits = p.V4
		}
		return !ok || p.as != masked && network.Bits() != bits
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
func (p Compared) translate(v Pattern) translation {
	made := translation{Pattern: v}
	switch {
	case p.Kind == KindPath:
		return p.translatePath(v)
	case v.kind != Exactly:
	case p.Kind == KindHost:
		made.text = WithoutPort(v.text)
		if made.text != v.text {
			made.comment = "The host " + v.text + " is compared without its port here."
		}
	case p.Kind == KindClientIP:
		text, ok := NetworkText(v.text)
		if !ok {
			made.why = p.someCondition()
			break
		}
		made.text = text
	}
	return made
}

// translatePath is translate for a path.
func (p Compared) translatePath(v Pattern) translation {
	made := translation{Pattern: v}
	if p.as == withQuery {
		cut, sameWithAnyQuery, ok := v.ofPath()
		switch {
		case !ok:
			return translation{why: "Envoy compares :path and its query with " + v.text}
		case !sameWithAnyQuery:
			made.comment = "Envoy compares :path with its query. Here " + v.text + " is a path, with any query behind it."
		}
		made.Pattern = cut
	}
	isText := made.kind != AnyValue && made.kind != ByExpression
	if isText && (!made.beginsPath() || strings.Contains(made.text, "?")) {
		made.why = p.someCondition()
	}
	return made
}

// someCondition is the condition that a policy cannot say, if there is no more to say of it.
func (p Part) someCondition() string { return "they have a condition on " + p.String() }

// AsOverride writes a pattern over the part as overrides have it. It is not ok if no override can say it.
func (p Compared) AsOverride(v Pattern) (text string, ok bool) {
	made := p.translate(v)
	return made.notation(p.Part), made.why == ""
}
