package request

import (
	"errors"
	"strconv"
	"strings"
)

// Value is what a limiter compares of a request: that of a part as a policy compares it, or another one of the part.
// What a policy has for a pattern that the limiter compares it with:
//
//	Fitting     a condition of a match, if a match can ask for it
//	AsOverride  a pattern of an override, as a text
//	Compared    the pattern of what the policy compares, to find texts that it does not tell apart
//
// They go by translate. Pattern.notation then writes a pattern as a policy has it.
type Value struct {
	Part Part // as the policy has it, which may compare less
	as   comparison
}

// comparison says which value of its part a limiter compares.
type comparison uint8

const (
	asPolicy   comparison = iota
	withQuery             // of the path /a?b all of that text
	withLength            // of the client 10.1.2.3 its network with the length, as 10.1.0.0/16 or 10.1.2.3/32
	asNetwork             // of the client 10.1.2.3 a network of any length, as 10.0.0.0/8
)

// Value is that of the part, if the limiter compares it as the policy does.
func (p Part) Value() Value { return Value{p, asPolicy} }

// Masked is what Envoy sends of a client's address that it masks: the text of the network, with its length.
func Masked(p Part) Value { return Value{p, withLength} }

// The values that a limiter compares and a policy does not.
var (
	PathWithQuery = Value{FullPath, withQuery}
	ClientNetwork = Value{ClientIP, asNetwork}
)

// Header is what a limiter compares of a header, or of one of Envoy's pseudo headers.
func Header(name string) Value {
	name = strings.ToLower(name)
	switch name {
	case ":path":
		return PathWithQuery
	case ":method":
		return Method.Value()
	case ":authority", "host":
		return Host.Value()
	}
	return Part{Kind: KindHeader, Name: name}.Value()
}

// HeaderNamed is Header for a name that a file has, or why there is none.
func HeaderNamed(name string) (Value, error) {
	v := Header(name)
	if v.Part.Kind == KindHeader && !IsHeaderName(v.Part.Name) {
		return Value{}, errors.New(strconv.Quote(name) + " is not the name of a header")
	}
	return v, nil
}

// IsNever reports whether no request has a value that fits the pattern.
func (v Value) IsNever(p Pattern) bool {
	switch {
	case v.Part.Kind == KindPath:
		return p.isNoPath()
	case v.Part.Kind == KindClientIP && p.kind == Exactly:
		return v.isNoAddress(p.text)
	}
	return false
}

// Fitting are the requests whose value fits one of the patterns. If no match can say that of one of them, WhyOff says
// why, and there is no match: that of the others would have a part of the requests. Nothing fits one of no patterns,
// and no match can say that either. If a policy compares another text, a comment says which.
func (v Value) Fitting(patterns ...Pattern) (s Selection) {
	if len(patterns) == 0 {
		s.TurnOff(NoMatch("nothing fits their condition on " + v.Part.String()))
	}
	var list []Pattern
	for _, p := range patterns {
		if p.kind == AnyValue {
			return Selection{}
		}
		inPolicy, said := v.translate(p)
		s.AddAll(said)
		switch {
		case said.IsOff():
		case !v.Part.takes(inPolicy), p.kind == Missing && len(patterns) > 1: // no list and no expression has both
			s.TurnOff(v.Part.noCondition())
		default:
			list = appendNew(list, inPolicy)
		}
	}
	if v.Part.Kind == KindHeader && len(list) > 1 {
		list = []Pattern{oneOf(list)}
	}
	if !s.IsOff() {
		s.match = Match{v.Part.id(): list}
	}
	return s
}

// oneOf fits what fits one of the patterns.
func oneOf(list []Pattern) Pattern {
	var all []string
	for _, p := range list {
		all = append(all, "(?:"+p.Regexp()+")")
	}
	return Expression(strings.Join(all, "|"))
}

// translate makes the pattern that does the same in a policy, where paths come without their query, hosts without a
// port, and addresses in one spelling. If the policy compares less than the limiter, a comment says so. If it cannot
// say the pattern, WhyOff says so.
//
//	value           pattern        inPolicy   comment                 WhyOff
//	Host            a.example:80   a.example  compared without port
//	Host            a.example:*                                       it is about the port
//	PathWithQuery   /a             /a         compared without query
//	PathWithQuery   /a?b                                              it is about the query
//	ClientIP        10.0.0.1/32    10.0.0.1
func (v Value) translate(p Pattern) (inPolicy Pattern, said Remarks) {
	switch v.Part.Kind {
	case KindPath:
		return v.translatePath(p)
	case KindHost:
		return translateHost(p)
	case KindClientIP:
		return translateAddress(p)
	default:
		return p, said
	}
}

// noCondition is why, if no match can say a condition on the part, and there is no more to say of it.
func (p Part) noCondition() WhyOff { return NoMatch("they have a condition on " + p.String()) }

// Compared is the pattern for what a policy compares of the value, where that is a text too: of the host A.example:80
// it is a.example.
func (v Value) Compared(p Pattern) Pattern {
	if v.Part.Kind != KindHost {
		return p
	}
	inPolicy, _ := v.translate(p)
	inPolicy.text = strings.ToLower(inPolicy.text)
	return inPolicy
}

// AsOverride writes a pattern of the value as overrides have it. It is not ok if no override can say it. It drops the
// comment, as an override has none: imports whose limits become overrides note once that a policy compares hosts
// without port, and paths without query.
func (v Value) AsOverride(p Pattern) (text string, ok bool) {
	inPolicy, said := v.translate(p)
	return inPolicy.notation(v.Part), !said.IsOff()
}
