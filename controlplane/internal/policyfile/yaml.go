package policyfile

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// maxProblems bounds what is said about a file that is wrong everywhere.
const maxProblems = 100

func parseYAML(data []byte) (*policy.Node, Errors) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := decoder.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF), err == nil && isEmpty(&doc):
		return nil, Errors{{Message: "the text is empty"}}
	case err != nil:
		return nil, syntaxError(data, err)
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return nil, Errors{{Line: second.Line, Column: second.Column, Message: "a second document begins here: a file " +
			"holds one"}}
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(data, err)
	}
	c := &converter{budget: policy.MaxBytes, open: map[*yaml.Node]bool{}}
	n := c.node(doc.Content[0], 0)
	if c.budget < 0 {
		return nil, c.problems
	}
	return n, c.problems
}

func isEmpty(doc *yaml.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].Tag == "!!null"
}

// converter turns YAML nodes into policy nodes.
type converter struct {
	problems Errors
	budget   int                 // bytes the tree may still take as JSON, at least; aliases multiply
	open     map[*yaml.Node]bool // anchors being expanded
}

func (c *converter) fail(n *yaml.Node, message string) *policy.Node {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{Line: n.Line, Column: n.Column, Message: message})
	}
	return &policy.Node{Line: n.Line, Column: n.Column}
}

// spend takes a node of so much text off the budget. Once it is gone nothing
// more is converted.
func (c *converter) spend(n *yaml.Node, size int) bool {
	if c.budget < 0 {
		return false
	}
	c.budget -= size + 1
	if c.budget < 0 {
		c.fail(n, "here the text grows beyond "+strconv.Itoa(policy.MaxBytes)+" bytes of JSON, which is the most: an "+
			"alias counts each time it is used")
		return false
	}
	return true
}

func (c *converter) node(n *yaml.Node, depth int) *policy.Node {
	if n.Kind == yaml.AliasNode {
		return c.alias(n, depth)
	}
	out := &policy.Node{Line: n.Line, Column: n.Column}
	switch {
	case !c.spend(n, len(n.Value)):
		return out
	case n.Style&yaml.TaggedStyle != 0:
		return c.fail(n, "tags such as "+n.Tag+" have no meaning here: remove it, and write text in quotes")
	case n.Kind == yaml.ScalarNode:
		return c.scalar(n, out)
	case depth == policy.MaxDepth:
		return c.fail(n, "lists and objects nest more than "+strconv.Itoa(policy.MaxDepth)+" deep")
	case n.Kind == yaml.SequenceNode:
		out.Kind = policy.List
		for _, item := range n.Content {
			out.Items = append(out.Items, c.node(item, depth+1))
		}
	default:
		out.Kind = policy.Object
		for i := 0; i+1 < len(n.Content); i += 2 {
			c.field(n.Content[i], n.Content[i+1], out, depth)
		}
	}
	return out
}

func (c *converter) alias(n *yaml.Node, depth int) *policy.Node {
	if c.open[n.Alias] || n.Alias == nil {
		c.budget = -1
		return c.fail(n, "the alias *"+n.Value+" stands inside its own anchor")
	}
	c.open[n.Alias] = true
	defer delete(c.open, n.Alias)
	return c.node(n.Alias, depth)
}

func (c *converter) field(key, val *yaml.Node, out *policy.Node, depth int) {
	switch {
	case !c.spend(key, len(key.Value)):
		return
	case key.Kind != yaml.ScalarNode || key.Style&yaml.TaggedStyle != 0:
		c.fail(key, "a field's name must be plain text")
		return
	case isPlain(key) && key.Value == "<<":
		c.fail(key, "merge keys (<<) are not supported: repeat the fields, or give the whole object by an alias")
		return
	}
	before := len(c.problems)
	name := c.scalar(key, &policy.Node{})
	if name.Kind == policy.String {
		out.Fields = append(out.Fields, policy.Field{
			Name: name.Text, Value: c.node(val, depth+1), Line: key.Line, Column: key.Column,
		})
	} else if len(c.problems) == before {
		c.fail(key, "a field's name must be text: write "+strconv.Quote(key.Value)+" in quotes")
	}
}

func isPlain(n *yaml.Node) bool {
	return n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// scalar decides what a scalar is. Plain true, false, null and decimal numbers
// are what they are in JSON. All other plain text is text: off, on, yes and
// 2024-01-01 are words. What YAML takes for a number in another notation
// (0x10, 1_000, 010, .5, .inf) is rejected, because its writer may mean either.
func (c *converter) scalar(n *yaml.Node, out *policy.Node) *policy.Node {
	out.Text = n.Value
	switch {
	case !isPlain(n):
		out.Kind = policy.String
	case jsonNumber.MatchString(n.Value):
		out.Kind = policy.Number
	case n.Tag == "!!int" || n.Tag == "!!float":
		return c.fail(n, "the number "+n.Value+" must be written as a plain decimal number, without leading zeros, "+
			"underscores, signs or prefixes, or in quotes if it is text")
	case n.Tag == "!!bool":
		out.Kind, out.Text = policy.Bool, strings.ToLower(n.Value)
	case n.Tag == "!!null":
		out.Kind, out.Text = policy.Null, ""
	default:
		out.Kind = policy.String
	}
	return out
}
