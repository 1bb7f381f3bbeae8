// Package schema writes the policy's format as a JSON Schema of draft 2020-12,
// from the tables by which policies are read, so that editors complete and check
// a policy while it is written.
//
// Its invariant: it refuses no policy that shared/policy accepts. What a schema
// cannot say (sums, names that must differ, what one field makes of another) it
// leaves to sluice validate. It must never know a field by name but where fields
// depend on each other.
package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// node is one schema; a field that is empty says nothing.
type node struct {
	Schema               string     `json:"$schema,omitempty"`
	Title                string     `json:"title,omitempty"`
	Description          string     `json:"description,omitempty"`
	Deprecated           bool       `json:"deprecated,omitempty"`
	Ref                  string     `json:"$ref,omitempty"`
	Type                 string     `json:"type,omitempty"`
	Const                any        `json:"const,omitempty"`
	Enum                 []string   `json:"enum,omitempty"`
	Default              any        `json:"default,omitempty"`
	Pattern              string     `json:"pattern,omitempty"`
	PatternError         string     `json:"patternErrorMessage,omitempty"` // of editors, no part of the draft
	MinLength            int64      `json:"minLength,omitempty"`
	MaxLength            int64      `json:"maxLength,omitempty"`
	Minimum              *int64     `json:"minimum,omitempty"`
	Maximum              *int64     `json:"maximum,omitempty"`
	Items                *node      `json:"items,omitempty"`
	MinItems             int64      `json:"minItems,omitempty"`
	MaxItems             int64      `json:"maxItems,omitempty"`
	Properties           properties `json:"properties,omitempty"`
	Required             []string   `json:"required,omitempty"`
	AdditionalProperties any        `json:"additionalProperties,omitempty"` // a node, or false
	PropertyNames        *node      `json:"propertyNames,omitempty"`
	MinProperties        int64      `json:"minProperties,omitempty"`
	MaxProperties        int64      `json:"maxProperties,omitempty"`
	AnyOf                []*node    `json:"anyOf,omitempty"`
	AllOf                []*node    `json:"allOf,omitempty"`
	Not                  *node      `json:"not,omitempty"`
	Defs                 properties `json:"$defs,omitempty"`
}

// properties are schemas by name, in an order.
type properties []property

type property struct {
	name string
	node *node
}

// MarshalJSON writes an object in the order of p.
func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, entry := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:", entry.name)
		text, err := json.Marshal(entry.node)
		if err != nil {
			return nil, fmt.Errorf("write schema of %s: %w", entry.name, err)
		}
		b.Write(text)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

const root = "policy"

// JSON returns the schema of a policy, for people to read too.
func JSON() ([]byte, error) { return write(policy.Model()) }

func write(model []policy.ObjectDoc) ([]byte, error) {
	known := map[string]bool{}
	for _, o := range model {
		known[o.Name] = true
	}
	var top *node
	var defs properties
	for i := range model {
		o, err := object(&model[i], known)
		if err != nil {
			return nil, err
		}
		if model[i].Name == root {
			top = o
		} else {
			defs = append(defs, property{model[i].Name, o})
		}
	}
	top.Schema, top.Title, top.Defs = "https://json-schema.org/draft/2020-12/schema", "sluice policy", defs
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(top); err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	return b.Bytes(), nil
}

func object(o *policy.ObjectDoc, known map[string]bool) (*node, error) {
	n := &node{Type: "object", AdditionalProperties: false, AllOf: dependencies[o.Name]}
	if o.OneField {
		n.MinProperties, n.MaxProperties = 1, 1
	}
	for i := range o.Fields {
		f := &o.Fields[i]
		if f.Reserved {
			continue
		}
		value, err := typed(&f.Type, known)
		if err != nil {
			return nil, fmt.Errorf("field %s of %s: %w", f.Name, o.Name, err)
		}
		value.Description = f.Doc
		value.Deprecated = strings.HasPrefix(f.Doc, "Deprecated:")
		if f.Default != nil {
			value.Default = json.RawMessage(policy.AppendJSON(nil, f.Default))
		}
		n.Properties = append(n.Properties, property{f.Name, value})
		if f.Required {
			n.Required = append(n.Required, f.Name)
		}
	}
	return n, nil
}

// What every text and every name is.
const (
	textPattern = `^[^\x00-\x1f\x7f-\x9f]+$`
	namePattern = `^[^\x00-\x20\x7f-\x9f](?:[^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f])?$`
)

func typed(t *policy.TypeDoc, known map[string]bool) (*node, error) {
	switch t.Kind {
	case policy.TypeText, policy.TypeDuration:
		n := &node{Type: "string", Pattern: t.Pattern}
		if t.Pattern == "" {
			n.Pattern = textPattern
		} else if strings.Contains(t.Text, "such as") {
			n.PatternError = "must be " + t.Text
		}
		return n, nil
	case policy.TypeName:
		return &node{Type: "string", Pattern: namePattern, MaxLength: t.Max}, nil
	case policy.TypeWord:
		return &node{Enum: t.Words}, nil
	case policy.TypeInteger:
		if t.Min == t.Max {
			return &node{Const: t.Min}, nil
		}
		return &node{Type: "integer", Minimum: &t.Min, Maximum: &t.Max}, nil
	case policy.TypeBoolean:
		return &node{Type: "boolean"}, nil
	case policy.TypeList:
		items, err := typed(t.Item, known)
		return &node{Type: "array", Items: items, MinItems: t.Min, MaxItems: t.Max}, err
	case policy.TypeHeaders:
		values, err := typed(t.Item, known)
		return &node{
			Type: "object", AdditionalProperties: values, MinProperties: t.Min,
			PropertyNames: &node{Pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", MaxLength: policy.MaxNameBytes},
		}, err
	case policy.TypeChoice:
		n := &node{}
		for i := range t.Forms {
			form, err := typed(&t.Forms[i], known)
			if err != nil {
				return nil, err
			}
			n.AnyOf = append(n.AnyOf, form)
		}
		return n, nil
	case policy.TypeObject:
		if known[t.Object] {
			return &node{Ref: "#/$defs/" + t.Object}, nil
		}
		return nil, fmt.Errorf("there is no object %q: add it to policy.Model, or say in shared/policy/written.go how it is written", t.Object)
	default:
		return nil, fmt.Errorf("nothing says how it is written: say it in shared/policy/written.go")
	}
}

// dependencies are what fields of one object make of each other.
var dependencies = map[string][]*node{
	"rule": {never(is("mode", "shadow"), given("enforce_percent"))},
	"cost": {
		{AnyOf: []*node{given("header"), given("query")}},
		never(given("header"), given("query")),
	},
	"override": {
		{AnyOf: []*node{given("limits"), is("unlimited", true)}},
		never(given("limits"), is("unlimited", true)),
	},
	"limit": {
		never(given("burst"), another("algorithm", "token_bucket")),
		never(given("jitter"), another("algorithm", "fixed_window")),
		never(is("elastic", true), another("algorithm", "fixed_window_per_key")),
	},
}

func never(all ...*node) *node { return &node{Not: &node{AllOf: all}} }

func given(field string) *node { return &node{Required: []string{field}} }

func is(field string, value any) *node {
	return &node{Required: []string{field}, Properties: properties{{field, &node{Const: value}}}}
}

// another is a field that is given with another value.
func another(field, value string) *node {
	return &node{Required: []string{field}, Properties: properties{{field, &node{Not: &node{Const: value}}}}}
}
