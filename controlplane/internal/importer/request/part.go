package request

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Part is a part of a request, as a rule's key or match has it.
type Part struct {
	Kind   PartKind
	Name   string   // of a header, query parameter or cookie
	V4, V6 int      // of client_ip: the lengths of prefixes that count together
	Path   []string // of a property
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
	KindMethod   PartKind = "method"
	KindHost     PartKind = "host"
	KindProperty PartKind = "property"
)

// The parts that have no name.
var (
	ClientIP = Part{Kind: KindClientIP, V4: 32, V6: 128}
	FullPath = Part{Kind: KindPath}
	Method   = Part{Kind: KindMethod}
	Host     = Part{Kind: KindHost}

	ConnectionID = Property("connection", "id")
)

// Property is the part for a property of Envoy.
func Property(path ...string) Part { return Part{Kind: KindProperty, Path: path} }

// IsHeaderName reports whether a header may have this name, in lower case.
func IsHeaderName(name string) bool { return len(name) <= policy.MaxNameBytes && policy.IsToken(name) }

// partID tells parts apart in a match, which has a list of patterns for each. It is the same for client
// addresses of all prefix lengths, and for a path with and without its query.
type partID struct {
	kind PartKind
	name string // of a header
}

func (p Part) id() partID { return partID{p.Kind, p.Name} }

func (id partID) part() Part { return Part{Kind: id.kind, Name: id.name} }

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
	case KindMethod, KindHost:
	}
	return string(p.Kind), nil
}

// MayBeMissing reports whether a request may lack the part.
func (p Part) MayBeMissing() bool {
	return p.Kind == KindHeader || p.Kind == KindQuery || p.Kind == KindCookie
}

// HasOnly reports whether text has only these characters, and at least one.
func HasOnly(text, characters string) bool { return text != "" && strings.Trim(text, characters) == "" }
