package policydoc

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestReferenceInDocs(t *testing.T) { requireDoc(t, "reference.md", Reference()) }

// Every field has one line.
func TestEveryFieldHasALine(t *testing.T) {
	text := Reference()
	fields := 0
	for _, o := range model() {
		_, section, _ := strings.Cut(text, "\n## "+o.name+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, f := range o.fields {
			fields++
			lines := 0
			for _, line := range strings.Split(section, "\n") {
				if strings.HasPrefix(line, "- `"+f.Name+"` (") || strings.Contains(line, "."+f.Name+"` (") {
					lines++
					require.Contains(t, line, escape(f.text))
				}
			}
			require.Equal(t, 1, lines, "%s.%s", o.name, f.Name)
		}
	}
	require.Greater(t, fields, 40)
	require.NotContains(t, text, "](#host)", "a link to an object without fields leads nowhere")
}

// Everything in the model has a text and a form, and nothing that is said by
// name is about a field that there is not.
func TestModelIsComplete(t *testing.T) {
	objects := map[string]bool{}
	for _, o := range model() {
		require.False(t, objects[o.name], o.name)
		objects[o.name] = true
	}
	var check func(at string, d *typeDoc)
	check = func(at string, d *typeDoc) {
		switch d.form {
		case policy.FormObject:
			require.True(t, objects[d.object], "%s is an object %q that policy.Schema lacks; or say in model.go what it looks like", at, d.object)
		case policy.FormText, policy.FormDuration, policy.FormPeriod:
			_, err := regexp.Compile(d.pattern)
			require.NoError(t, err, at)
		case policy.FormWord:
			require.NotEmpty(t, d.words, at)
		case policy.FormList, policy.FormPatterns:
			check(at+"[]", d.item)
		case policy.FormChoice:
			require.NotEmpty(t, d.forms, "%s: say in model.go in which forms it may be written", at)
			for i := range d.forms {
				check(at, &d.forms[i])
			}
		default: // says all by itself
			require.NotZero(t, d.form, at)
		}
	}
	fields := map[string]bool{}
	for _, o := range model() {
		for i := range o.fields {
			f := &o.fields[i]
			at := o.name + "." + f.Name
			fields[at] = true
			check(at, &f.is)
			require.NotEmpty(t, f.text, "%s: say in texts.go what it means", at)
			require.NotEmpty(t, message.Shape(f.Shape), at)
		}
	}
	for _, named := range []map[string]bool{keys(texts), keys(textPatterns), keys(itemCounts)} {
		for at := range named {
			require.True(t, fields[at], at)
		}
	}
}

func keys[T any](m map[string]T) map[string]bool {
	set := map[string]bool{}
	for k := range m {
		set[k] = true
	}
	return set
}

// The words that a key part may be alone are those that the reader takes.
func TestBareKeyParts(t *testing.T) {
	var taken []string
	for _, o := range policy.Schema() {
		for _, f := range o.Fields {
			doc, err := policy.ParseJSON([]byte(`{"version":1,"rules":[{"name":"a","limits":[],"key":["` + f.Name + `"]}]}`))
			require.NoError(t, err)
			if _, problems := policy.Read(doc); o.Name == "key" && len(problems) == 0 {
				taken = append(taken, f.Name)
			}
		}
	}
	require.Equal(t, items["key"].forms[0].words, taken)
}
