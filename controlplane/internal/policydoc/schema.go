// Package policydoc writes down the policy's format: as a JSON Schema of draft
// 2020-12, by which editors complete and check a policy, and as the reference
// page. Both come from the tables by which policies are read; what fields mean
// is said in texts.go.
//
// Its invariant: the schema refuses no policy that shared/policy accepts. What a
// schema cannot say (sums, names that must differ) it leaves to sluice validate.
package policydoc

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

// JSONSchema returns the schema of a policy, for people to read too.
func JSONSchema() ([]byte, error) { return write(model()) }

func write(model []objectDoc) ([]byte, error) {
	known := map[string]bool{}
	for _, o := range model {
		known[o.name] = true
	}
	var top *node
	var defs properties
	for i := range model {
		o, err := object(&model[i], known)
		if err != nil {
			return nil, err
		}
		if model[i].name == root {
			top = o
		} else {
			defs = append(defs, property{model[i].name, o})
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

func object(o *objectDoc, known map[string]bool) (*node, error) {
	n := &node{Type: "object", AdditionalProperties: false, AllOf: dependencies[o.name]}
	if o.oneField {
		n.MinProperties, n.MaxProperties = 1, 1
	}
	for i := range o.fields {
		f := &o.fields[i]
		if f.reserved {
			continue
		}
		value, err := typed(&f.is, known)
		if err != nil {
			return nil, fmt.Errorf("field %s of %s: %w", f.Name, o.name, err)
		}
		value.Description = f.text
		value.Deprecated = strings.HasPrefix(f.text, "Deprecated:")
		if f.Default != nil {
			value.Default = json.RawMessage(policy.AppendJSON(nil, f.Default))
		}
		n.Properties = append(n.Properties, property{f.Name, value})
		if f.Shape.Required {
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

func typed(t *typeDoc, known map[string]bool) (*node, error) {
	switch t.form {
	case policy.FormText, policy.FormDuration, policy.FormPeriod:
		n := &node{Type: "string", Pattern: t.pattern}
		if t.pattern == "" {
			n.Pattern = textPattern
		} else if strings.Contains(t.text, "such as") {
			n.PatternError = "must be " + t.text
		}
		return n, nil
	case policy.FormName:
		return &node{Type: "string", Pattern: namePattern, MaxLength: policy.MaxNameBytes}, nil
	case policy.FormWord:
		return &node{Enum: t.words}, nil
	case policy.FormInteger:
		if t.min == t.max {
			return &node{Const: t.min}, nil
		}
		return &node{Type: "integer", Minimum: &t.min, Maximum: &t.max}, nil
	case policy.FormBool:
		return &node{Type: "boolean"}, nil
	case policy.FormList:
		items, err := typed(t.item, known)
		return &node{Type: "array", Items: items, MinItems: t.min, MaxItems: t.max}, err
	case policy.FormPatterns:
		values, err := typed(t.item, known)
		return &node{
			Type: "object", AdditionalProperties: values, MinProperties: t.min,
			PropertyNames: &node{Pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", MaxLength: policy.MaxNameBytes},
		}, err
	case policy.FormChoice:
		n := &node{}
		for i := range t.forms {
			form, err := typed(&t.forms[i], known)
			if err != nil {
				return nil, err
			}
			n.AnyOf = append(n.AnyOf, form)
		}
		return n, nil
	case policy.FormObject:
		if known[t.object] {
			return &node{Ref: "#/$defs/" + t.object}, nil
		}
		return nil, fmt.Errorf("there is no object %q: add it to policy.Schema, or say in model.go how it is written", t.object)
	default:
		return nil, fmt.Errorf("nothing says how it is written: say it in model.go")
	}
}

// dependencies are how fields of one object restrict each other.
var dependencies = map[string][]*node{
	"rule": {
		never(is("mode", "shadow"), given("enforce_percent")),
		never(given("lease"), not(is("scope", "cluster"))),
		never(given("on_unavailable"), not(is("scope", "cluster"))),
		never(is("scope", "cluster"), is("count_denied", true), not(is("lease", "off"))),
	},
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

func not(n *node) *node { return &node{Not: n} }

func given(field string) *node { return &node{Required: []string{field}} }

func is(field string, value any) *node {
	return &node{Required: []string{field}, Properties: properties{{field, &node{Const: value}}}}
}

// another is a field that is given with another value.
func another(field, value string) *node {
	return &node{Required: []string{field}, Properties: properties{{field, &node{Not: &node{Const: value}}}}}
}
