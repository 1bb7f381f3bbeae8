package policydoc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const head = `# Policy reference

Every field of the policy file. [policy.md](policy.md) explains them with examples; ` + "`sluice schema`" + `
prints the same for editors. A name is 1 to 128 bytes of text without control characters or
spaces at its ends.
`

// Reference returns the reference page: a line for every field.
func Reference() string {
	model := model()
	r := reference{objects: map[string]*objectDoc{}, places: map[string][]string{}}
	for i := range model {
		r.objects[model[i].name] = &model[i]
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
	objects map[string]*objectDoc
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
	for i := range o.fields {
		r.follow(&o.fields[i].is, strings.TrimPrefix(at+"."+o.fields[i].Name, "."), inside)
	}
}

func (r *reference) follow(t *typeDoc, at string, inside []string) {
	switch t.form {
	case policy.FormObject:
		r.visit(t.object, at, inside)
	case policy.FormList:
		r.follow(t.item, at+"[]", inside)
	case policy.FormChoice:
		for i := range t.forms {
			r.follow(&t.forms[i], at, inside)
		}
	default: // has no fields
	}
}

func (r *reference) section(b *strings.Builder, o *objectDoc) {
	places := r.places[o.name]
	if len(o.fields) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", o.name)
	switch {
	case places[0] == "":
		b.WriteString("The whole file.\n")
	case o.oneField:
		fmt.Fprintf(b, "At %s; exactly one of these fields.\n", code(places...))
	default:
		fmt.Fprintf(b, "At %s.\n", code(places...))
	}
	b.WriteString("\n")
	at := places[0]
	if at != "" {
		at += "."
	}
	for i := range o.fields {
		f := &o.fields[i]
		fmt.Fprintf(b, "- `%s%s` (%s%s): %s\n", at, f.Name, r.typeOf(&f.is), defaultOf(f), escape(f.text))
	}
}

func defaultOf(f *fieldDoc) string {
	switch {
	case f.Shape.Required:
		return "; required"
	case f.reserved:
		return "; not in a file"
	case f.Default == nil:
		return ""
	}
	return "; default " + code(f.Default.Text)
}

// typeOf says what a value looks like.
func (r *reference) typeOf(t *typeDoc) string {
	switch t.form {
	case policy.FormName:
		return "name"
	case policy.FormWord:
		return code(t.words...)
	case policy.FormInteger:
		if t.min == t.max {
			return strconv.FormatInt(t.min, 10)
		}
		return fmt.Sprintf("%d to %d", t.min, t.max)
	case policy.FormBool:
		return "true or false"
	case policy.FormDuration:
		return "duration"
	case policy.FormPeriod:
		return "duration, or `minute`, `15 minutes` and the like"
	case policy.FormPatterns:
		return strings.TrimPrefix(t.text, "an ")
	case policy.FormObject:
		if len(r.objects[t.object].fields) == 0 {
			return code("{}")
		}
		return "[" + t.object + "](#" + t.object + ")"
	case policy.FormList:
		many := ""
		switch {
		case t.min > 0 && t.max > 0:
			many = fmt.Sprintf(" of %d to %d", t.min, t.max)
		case t.min > 0:
			many = fmt.Sprintf(" of %d or more", t.min)
		case t.max > 0:
			many = fmt.Sprintf(" of at most %d", t.max)
		}
		return "list" + many + ": " + r.typeOf(t.item)
	case policy.FormChoice:
		forms := make([]string, len(t.forms))
		for i := range t.forms {
			forms[i] = r.typeOf(&t.forms[i])
		}
		return strings.Join(forms, ", or ")
	default:
		return t.text
	}
}

// escape makes text mean itself in Markdown.
func escape(text string) string { return strings.ReplaceAll(text, "*", `\*`) }

func code(words ...string) string { return "`" + strings.Join(words, "`, `") + "`" }
