package policydoc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	head = `# Policy reference

Every field of the policy file. [policy.md](policy.md) has examples. A field without a type is text, or true or false.
`
	testsHead = `# Reference of policy tests

Every field of a file of tests, for ` + "`sluice test`" + `. A field without a type is text, or true or false.
`
)

// The reference page has a line for every field, and every text is one of a field.
func TestReferenceInDocs(t *testing.T) {
	page, fields := referencePage(t, head, objects())
	require.Len(t, texts, fields)
	requireDoc(t, "reference.md", page)
	page, _ = referencePage(t, testsHead, testObjects())
	requireDoc(t, "test-reference.md", page)
}

// referencePage is the page of a format, and how many fields it has.
func referencePage(t *testing.T, head string, all properties) (page string, fields int) {
	t.Helper()
	r := reference{t: t, objects: map[string]*node{}, places: map[string][]string{}}
	for _, o := range all {
		r.objects[o.name] = o.node
		for _, f := range o.node.Properties {
			require.NotEmpty(t, f.node.Description, "%s.%s: say what it means", o.name, f.name)
			fields++
		}
	}
	r.visit(all[0].name, "", nil)
	var b strings.Builder
	b.WriteString(head)
	for _, o := range all {
		r.section(&b, o.name, o.node)
	}
	return b.String(), fields
}

type reference struct {
	t       *testing.T
	objects map[string]*node
	places  map[string][]string // of each object, as paths
}

// visit notes the place of an object and of those in it.
func (r *reference) visit(name, at string, inside []string) {
	if slices.Contains(inside, name) {
		return // an object that may hold itself
	}
	require.Contains(r.t, r.objects, name, "%s has this object: add it to the objects of the format's Schema", at)
	r.places[name] = append(r.places[name], at)
	for _, f := range r.objects[name].Properties {
		r.follow(f.node, strings.TrimPrefix(at+"."+f.name, "."), append(inside, name))
	}
}

func (r *reference) follow(n *node, at string, inside []string) {
	if n.Ref != "" {
		r.visit(nameOf(n), at, inside)
	}
	if n.Items != nil {
		r.follow(n.Items, at+"[]", inside)
	}
	for _, form := range n.AnyOf {
		r.follow(form, at, inside)
	}
	if value, ok := n.AdditionalProperties.(*node); ok {
		r.follow(value, at+".NAME", inside)
	}
}

func nameOf(n *node) string { return strings.TrimPrefix(n.Ref, "#/$defs/") }

func (r *reference) section(b *strings.Builder, name string, o *node) {
	if len(o.Properties) == 0 {
		return
	}
	places := r.places[name]
	fmt.Fprintf(b, "\n## %s\n\n", name)
	if o.MaxProperties == 1 {
		b.WriteString("Exactly one of these fields.\n\n")
	}
	for _, f := range o.Properties {
		if f.node.reserved {
			continue // refused in a file
		}
		var notes []string
		if plain := f.node.says == "text" || f.node.Type == "boolean"; !plain {
			notes = append(notes, r.typeOf(f.node))
		}
		switch {
		case slices.Contains(o.Required, f.name):
			notes = append(notes, "required")
		case f.node.Default != nil:
			notes = append(notes, "default "+code(strings.Trim(fmt.Sprintf("%s", f.node.Default), `"`)))
		}
		field := code(strings.TrimPrefix(places[0]+"."+f.name, "."))
		if len(notes) > 0 {
			field += " (" + strings.Join(notes, "; ") + ")"
		}
		fmt.Fprintf(b, "- %s: %s\n", field, strings.ReplaceAll(f.node.Description, "*", `\*`))
	}
}

// typeOf says what a value looks like.
func (r *reference) typeOf(n *node) string {
	switch {
	case n.says != "":
		return n.says
	case n.Const != nil:
		return fmt.Sprint(n.Const)
	case n.Enum != nil:
		return code(n.Enum...)
	case n.Minimum != nil:
		return fmt.Sprintf("%d to %d", *n.Minimum, *n.Maximum)
	case n.Ref != "" && len(r.objects[nameOf(n)].Properties) == 0:
		return code("{}")
	case n.Ref != "":
		return "[" + nameOf(n) + "](#" + nameOf(n) + ")"
	case n.MinItems > 0 && n.MaxItems > 0:
		return fmt.Sprintf("%d to %d %s", n.MinItems, n.MaxItems, r.typeOf(n.Items))
	case n.MinItems > 0:
		return "list of " + r.typeOf(n.Items)
	case n.Items != nil:
		return fmt.Sprintf("up to %d %s", n.MaxItems, r.typeOf(n.Items))
	}
	var forms []string
	for _, form := range n.AnyOf {
		forms = append(forms, r.typeOf(form))
	}
	return strings.Join(forms, ", or ")
}

func code(words ...string) string { return "`" + strings.Join(words, "`, `") + "`" }
