package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// fieldCase shows what a field of the policy does: the same requests get different
// responses with the field and with another value or none.
type fieldCase struct {
	field string
	// rules are those of a policy. ⟦with|without⟧ is the text with the field and the
	// text without it. $ is the field's name, and @ matches the host of the requests.
	rules string
	steps []fieldStep
}

// fieldStep is a step of rows with the field and without, and how long after the one before it
// comes at least.
type fieldStep struct {
	line map[bool]string
	wait time.Duration
}

var fieldText, waitText = regexp.MustCompile(`⟦([^|⟧]*)\|?([^⟧]*)⟧`), regexp.MustCompile(` :wait=(\w+)`)

// allFieldCases reads the fields whose effect two policies and a few requests can show. After the
// rules of a case comes "FIELD SEE: STEP; STEP". A step is "REQUEST → WITH|WITHOUT", or "REQUEST →
// BOTH", with a request as in rows and perhaps ":wait=1s" among its headers. What it sees is a
// status or, of what SEE names, the value or, after "~", a part of it.
var allFieldCases = sync.OnceValue(func() (list []fieldCase) {
	rules := ""
	text, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(text)) {
		head, steps, ends := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.HasPrefix(line, "- ") {
			rules += line
			continue
		} else if !ends {
			continue
		}
		field, see, _ := strings.Cut(head, " ")
		c := fieldCase{field: field, rules: rules}
		for _, text := range strings.Split(steps, "; ") {
			c.steps = append(c.steps, stepOf(field, see, text))
		}
		list, rules = append(list, c), ""
	}
	return list
})

func stepOf(field, see, text string) (s fieldStep) {
	request, sees, _ := strings.Cut(strings.ReplaceAll(text, "BEARER", "Bearer␣"+token), " → ")
	if m := waitText.FindStringSubmatch(request); m != nil {
		s.wait, _ = time.ParseDuration(m[1])
	}
	request = waitText.ReplaceAllString(request, "")
	if !strings.Contains(request, " :host=") {
		request += " :host=" + hostOf(field)
	}
	with, without, differs := strings.Cut(sees, "|")
	if !differs {
		without = with
	}
	line := func(want string) string {
		if see == "" {
			return request + " → " + want
		} else if part, ok := strings.CutPrefix(want, "~"); ok {
			want = "~(?s).*" + regexp.QuoteMeta(part) + ".*"
		}
		return request + " → * " + see + "=" + strings.ReplaceAll(want, " ", "␣")
	}
	s.line = map[bool]string{true: line(with), false: line(without)}
	return s
}

func hostOf(field string) string { return strings.ReplaceAll(field, "_", "-") + ".example" }

// text returns the rules with the field, or without it.
func (c fieldCase) text(with bool) string {
	text := strings.NewReplacer("$", c.field, "@", "hosts: ["+hostOf(c.field)+"]", "FAR", far).Replace(c.rules)
	choice := "$2"
	if with {
		choice = "$1"
	}
	text = fieldText.ReplaceAllString(text, choice)
	return strings.NewReplacer(", , ", ", ", "{, ", "{").Replace(text)
}

// requestOf is the path of such a request, and its headers in pairs.
func requestOf(text string) (path string, headers []string) {
	words := strings.Fields(text)
	if !strings.HasPrefix(words[0], "/") {
		headers, words = append(headers, ":method", words[0]), words[1:]
	}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		headers = append(headers, name, strings.ReplaceAll(value, "␣", " "))
	}
	return words[0], headers
}

// TestFields shows, on every proxy, the effect of each field with two policies that
// differ only in the fields.
func TestFields(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		cases := allFieldCases()
		for _, with := range []bool{true, false} {
			text, last := "version: 1\nheaders: ietf\n"+managed+"rules:\n", make([]time.Time, len(cases))
			for _, c := range cases {
				text += c.text(with)
			}
			s := serve(t, d, text)
			for step, more := 0, true; more; step++ { // of each, so that they wait at the same time
				more = false
				for i, c := range cases {
					if step < len(c.steps) {
						time.Sleep(time.Until(last[i].Add(c.steps[step].wait)))
						s.step(t, tokens{}, c.steps[step].line[with], "HTTP/1")
						last[i], more = time.Now(), true
					}
				}
			}
		}
	})
}

// Every field of the policy has one scenario, and no scenario would be the same
// without its field.
func TestEveryFieldHasAScenario(t *testing.T) {
	scenarios := map[string]bool{}
	for _, s := range fieldScenarios {
		for field := range strings.FieldsSeq(s.fields) {
			scenarios[field] = true
		}
	}
	for _, c := range allFieldCases() {
		require.False(t, scenarios[c.field], "%s has two", c.field)
		scenarios[c.field] = true
		require.NotEqual(t, c.text(true), c.text(false), c.field)
		require.True(t, slices.ContainsFunc(c.steps, func(s fieldStep) bool { return s.line[true] != s.line[false] }), "%s: the scenario shows no effect of the field", c.field)
		_, name, _ := strings.Cut(c.field, ".")
		require.Contains(t, c.text(true), name, "the scenario is about another field")
	}
	fields := 0
	for _, o := range policy.Schema() {
		for _, f := range o.Fields {
			fields++
			require.True(t, scenarios[o.Name+"."+f.Name], "%s.%s has no scenario: add one to testdata/fields.txt or fieldScenarios", o.Name, f.Name)
		}
	}
	require.Len(t, scenarios, fields, "a scenario is for no field")
}

func TestGRPCResponse(t *testing.T) { everyProxy(t, rows("grpc")) }

func TestUpstreamFields(t *testing.T) { everyProxy(t, rows("upstream")) }
