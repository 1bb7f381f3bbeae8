// Command reference writes docs/reference.md, a line for every field of a
// policy, from the tables by which policies are read.
//
//	go run ./docs/reference        (in the root of the repository)
//
// It says nothing of its own about a field: what is missing in the page is
// missing in its row.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func main() {
	if err := os.WriteFile(file, []byte(page(policy.Model())), 0o644); err != nil { //nolint:gosec // for everybody to read
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// file is what is written.
const file = "docs/reference.md"

const head = `# Policy reference

Every field of the policy file, one a line. Made from the tables by which policies
are read: ` + "`go run ./docs/reference`" + `. [policy.md](policy.md) explains them with
examples; ` + "`sluice schema`" + ` prints the same for editors.

A name is 1 to 128 bytes of text without control characters and without spaces at
its ends. A field that is not built yet is refused, never ignored.
`

// page writes the reference.
func page(model []policy.ObjectDoc) string {
	r := reference{objects: map[string]*policy.ObjectDoc{}, places: map[string][]string{}}
	for i := range model {
		r.objects[model[i].Name] = &model[i]
	}
	r.visit("policy", "", nil)
	var b strings.Builder
	b.WriteString(head)
	for i := range model {
		r.section(&b, &model[i])
	}
	return b.String()
}

type reference struct {
	objects map[string]*policy.ObjectDoc
	places  map[string][]string // of each object, as paths
}

// visit notes the place of an object and of those in it.
func (r *reference) visit(name, at string, inside []string) {
	for _, outer := range inside {
		if outer == name {
			return // an object that may hold itself
		}
	}
	r.places[name] = append(r.places[name], at)
	inside = append(inside, name)
	o := r.objects[name]
	for i := range o.Fields {
		r.follow(&o.Fields[i].Type, strings.TrimPrefix(at+"."+o.Fields[i].Name, "."), inside)
	}
}

func (r *reference) follow(t *policy.TypeDoc, at string, inside []string) {
	switch t.Kind {
	case policy.TypeObject:
		r.visit(t.Object, at, inside)
	case policy.TypeList:
		r.follow(t.Item, at+"[]", inside)
	case policy.TypeChoice:
		for i := range t.Forms {
			r.follow(&t.Forms[i], at, inside)
		}
	default: // has no fields
	}
}

func (r *reference) section(b *strings.Builder, o *policy.ObjectDoc) {
	places := r.places[o.Name]
	if len(o.Fields) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", o.Name)
	switch {
	case places[0] == "":
		b.WriteString("The whole file.\n")
	case o.OneField:
		fmt.Fprintf(b, "At %s; exactly one of these fields.\n", code(places...))
	default:
		fmt.Fprintf(b, "At %s.\n", code(places...))
	}
	b.WriteString("\n| field | type | default | meaning |\n|---|---|---|---|\n")
	at := places[0]
	if at != "" {
		at += "."
	}
	for i := range o.Fields {
		f := &o.Fields[i]
		kind := r.typeOf(&f.Type)
		if len(f.NotBuilt) > 0 {
			kind += "; not built yet: " + code(f.NotBuilt...)
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", at, f.Name, kind, defaultOf(f), escape(f.Doc))
	}
	for _, name := range o.NotBuilt {
		fmt.Fprintf(b, "| `%s%s` | | | Not built yet. |\n", at, name)
	}
}

func defaultOf(f *policy.FieldDoc) string {
	switch {
	case f.Required:
		return "required"
	case f.Reserved:
		return "not in a file"
	case f.Default == nil:
		return ""
	}
	return code(f.Default.Text)
}

// typeOf says what a value looks like.
func (r *reference) typeOf(t *policy.TypeDoc) string {
	switch t.Kind {
	case policy.TypeName:
		return "name"
	case policy.TypeWord:
		return code(t.Words...)
	case policy.TypeInteger:
		if t.Min == t.Max {
			return strconv.FormatInt(t.Min, 10)
		}
		return fmt.Sprintf("%d to %d", t.Min, t.Max)
	case policy.TypeBoolean:
		return "true or false"
	case policy.TypeDuration:
		return "duration"
	case policy.TypeHeaders:
		return strings.TrimPrefix(t.Text, "an ")
	case policy.TypeObject:
		if len(r.objects[t.Object].Fields) == 0 {
			return code("{}")
		}
		return "[" + t.Object + "](#" + t.Object + ")"
	case policy.TypeList:
		many := ""
		switch {
		case t.Min > 0 && t.Max > 0:
			many = fmt.Sprintf(" of %d to %d", t.Min, t.Max)
		case t.Min > 0:
			many = fmt.Sprintf(" of %d or more", t.Min)
		case t.Max > 0:
			many = fmt.Sprintf(" of at most %d", t.Max)
		}
		return "list" + many + ": " + r.typeOf(t.Item)
	case policy.TypeChoice:
		forms := make([]string, len(t.Forms))
		for i := range t.Forms {
			forms[i] = r.typeOf(&t.Forms[i])
		}
		return strings.Join(forms, ", or ")
	default:
		return strings.ReplaceAll(t.Text, "|", `\|`)
	}
}

// escape makes text mean itself in a table.
func escape(text string) string { return strings.NewReplacer("|", `\|`, "*", `\*`).Replace(text) }

func code(words ...string) string { return "`" + strings.Join(words, "`, `") + "`" }
