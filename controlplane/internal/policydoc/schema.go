// Package policydoc writes down the format of policies, and of their tests: as a JSON Schema
// of draft 2020-12, by which editors complete and check a file, and as the reference
// page. Both come from the tables by which files are read; what the fields of a policy mean
// is said in texts.go, and reference_test.go writes the pages.
//
// Its invariant: the schema refuses no policy that shared/policy accepts, and no tests that testfile accepts. What a
// schema cannot say of one field alone (sums, names that must differ, fields that do not
// go together) it leaves to sluice validate.
package policydoc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/testfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// node is one schema; a field that is empty says nothing.
type node struct {
	says     string // how the reference says it, where the rest does not
	reserved bool   // a field that the schema leaves out: the control plane sets it

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
	Defs                 properties `json:"$defs,omitempty"`
}

// properties are schemas by name, in an order.
type properties []property

type property struct {
	name string
	node *node
}

// MarshalJSON writes an object in the order of p, without what is reserved.
func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for _, entry := range p {
		if entry.node.reserved {
			continue
		}
		fmt.Fprintf(&b, ",%q:", entry.name)
		if err := newEncoder(&b).Encode(entry.node); err != nil {
			return nil, fmt.Errorf("write schema of %s: %w", entry.name, err)
		}
	}
	return append(append([]byte{'{'}, bytes.TrimPrefix(b.Bytes(), []byte(","))...), '}'), nil
}

// JSONSchema returns the schema of a policy, for people to read too.
func JSONSchema() ([]byte, error) { return write("sluice policy", objects()) }

// TestsSchema returns the schema of a file of tests.
func TestsSchema() ([]byte, error) { return write("sluice policy tests", testObjects()) }

// write writes the schema of a format, of which the first object is the whole file.
func write(title string, all properties) ([]byte, error) {
	top := all[0].node
	top.Schema = "https://json-schema.org/draft/2020-12/schema"
	top.Title = title
	top.Defs = all[1:]
	var b bytes.Buffer
	e := newEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(top); err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	return b.Bytes(), nil
}

// newEncoder writes & and < as they are, for people to read.
func newEncoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}

// objects are all objects of the policy file, the whole file first.
func objects() properties { return objectsOf(policy.Schema(), texts) }

// testObjects are those of a file of tests.
func testObjects() properties { return objectsOf(testfile.Schema()) }

func objectsOf(format []policy.ObjectSchema, texts map[string]string) (list properties) {
	for _, o := range format {
		n := &node{Type: "object", AdditionalProperties: false}
		if o.IsOne {
			n.MinProperties, n.MaxProperties = 1, 1
		}
		for _, f := range o.Fields {
			at := o.Name + "." + f.Name
			value := *typeOf(f.Shape)
			value.Description, value.Deprecated = texts[at], strings.HasPrefix(texts[at], "Deprecated.")
			value.reserved = at == "policy.revision" || at == "policy.report_secret"
			if f.Default != nil {
				value.Default = json.RawMessage(policy.AppendJSON(nil, f.Default))
			}
			n.Properties = append(n.Properties, property{f.Name, &value})
			if f.Shape.Required {
				n.Required = append(n.Required, f.Name)
			}
		}
		list = append(list, property{o.Name, n})
	}
	return list
}

// typeOf is what a value of the shape looks like.
func typeOf(s policy.Shape) *node {
	switch s.Form {
	case policy.FormText:
		return text(cmp.Or(textNames[s.Of], "text"), cmp.Or(textPatterns[s.Of], textPattern))
	case policy.FormName:
		return &node{Type: "string", Pattern: namePattern, MaxLength: policy.MaxNameBytes, says: "name"}
	case policy.FormDuration:
		return &node{Type: "string", Pattern: durationPattern, PatternError: "must be " + message.Shape(s), says: "duration"}
	case policy.FormPeriod:
		return &node{
			Type: "string", Pattern: periodPattern, PatternError: "must be " + message.Shape(s),
			says: "duration such as 1h30m or 2w, or `15 minutes`",
		}
	case policy.FormWord:
		return word(s.Words...)
	case policy.FormInteger:
		return integer(s.Min, s.Max)
	case policy.FormPrice:
		return &node{Type: "number", Minimum: &s.Min, Maximum: &s.Max, says: "number with up to six decimal places"}
	case policy.FormBool:
		return &node{Type: "boolean", says: "true or false"}
	case policy.FormList:
		item := items[s.Of]
		if item == nil {
			item = typeOf(s.Any[0])
		}
		return &node{Type: "array", Items: item, MinItems: s.Min, MaxItems: s.Max}
	case policy.FormObject:
		return object(s.Of)
	case policy.FormTexts:
		return &node{
			Type: "object", AdditionalProperties: anyText, MinProperties: 1, MaxProperties: policy.MaxMetadata,
			says: "such as {env: prod}",
		}
	case policy.FormPatterns:
		return headers(text("text", headerValuePattern), 1, "such as {x-tier: gold}")
	default:
		n := &node{AnyOf: choices[s.Of]}
		for _, form := range s.Any {
			n.AnyOf = append(n.AnyOf, typeOf(form))
		}
		return n
	}
}

func text(says, pattern string) *node {
	n := &node{Type: "string", Pattern: pattern, says: says}
	if strings.Contains(says, "such as") {
		n.PatternError = "must be " + says
	}
	return n
}

func word(words ...string) *node { return &node{Enum: words} }

func integer(low, high int64) *node {
	if low == high {
		return &node{Const: low}
	}
	return &node{Type: "integer", Minimum: &low, Maximum: &high}
}

func object(name string) *node { return &node{Ref: "#/$defs/" + name} }

// headers is an object from header names to values.
func headers(value *node, least int64, says string) *node {
	return &node{
		Type: "object", AdditionalProperties: value, MinProperties: least, says: says,
		PropertyNames: &node{Pattern: tokenPattern, MaxLength: policy.MaxNameBytes},
	}
}
