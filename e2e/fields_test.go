package e2e

import (
	"fmt"
	"iter"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// fieldCase shows what a field of the policy does: the same requests get different
// responses with the field and with another value or none.
type fieldCase struct {
	// rules are those of a policy. ⟦with|without⟧ is the text with the field and the
	// text without it. $ is the field's name, and @ matches the host of the requests.
	rules string
	see   string // a header of the response, "body", or "" = its status
	steps []fieldStep
}

// fieldStep is a request and what it sees with the field and without. The request is
// a text such as "POST /x?y=1 x-user-id=alice"; ":host=a", ":from=127.0.0.2", ":body=9",
// so many bytes, and ":wait=1s" may be among its headers, and ␣ is a blank. What it sees is a status or a header's value,
// or after "~" a part of it; "" is not checked.
type fieldStep struct{ request, with, without string }

var fieldText = regexp.MustCompile(`⟦([^|⟧]*)\|?([^⟧]*)⟧`)

func hostOf(field string) string { return strings.ReplaceAll(field, "_", "-") + ".example" }

// text returns the rules with the field, or without it.
func (c fieldCase) text(field string, with bool) string {
	text := strings.NewReplacer("$", field, "@", "hosts: ["+hostOf(field)+"]", "FAR", far).Replace(strings.Trim(c.rules, "\n"))
	choice := "$2"
	if with {
		choice = "$1"
	}
	text = fieldText.ReplaceAllString(text, choice)
	return strings.NewReplacer(", , ", ", ", "{, ", "{").Replace(text) + "\n"
}

func (c fieldCase) walk(t *testing.T, p *proxy, field string, with bool) {
	t.Helper()
	for i, s := range c.steps {
		want := s.without
		if with {
			want = s.with
		}
		if want == "" {
			continue
		}
		seen := p.see(t, s.request, hostOf(field), c.see)
		at := fmt.Sprintf("%s, with it %t, step %d: %s", field, with, i, s.request)
		if part, ok := strings.CutPrefix(want, "~"); ok {
			require.Contains(t, seen, part, at)
		} else {
			require.Equal(t, want, seen, at)
		}
	}
}

// see sends a fieldStep's request on a connection of its own, and returns the response's
// status, body or header, as what says.
func (p *proxy) see(t *testing.T, request, host, what string) string {
	t.Helper()
	words, headers := strings.Fields(request), []string{":host", host, "connection", "close"}
	if !strings.HasPrefix(words[0], "/") {
		headers, words = append(headers, ":method", words[0]), words[1:]
	}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if name == ":wait" {
			wait, err := time.ParseDuration(value)
			require.NoError(t, err)
			time.Sleep(wait)
			continue
		}
		headers = append(headers, name, strings.ReplaceAll(value, "␣", " "))
	}
	res, body := p.get(t, words[0], headers...)
	switch what {
	case "":
		return strconv.Itoa(res.StatusCode)
	case "body":
		return body
	}
	return strings.Join(res.Header.Values(what), ", ")
}

// allFieldCases are those of all files.
func allFieldCases() iter.Seq2[string, fieldCase] {
	return func(yield func(string, fieldCase) bool) {
		for _, cases := range []map[string]fieldCase{fieldCases, answerFieldCases} {
			for field, c := range cases {
				if !yield(field, c) {
					return
				}
			}
		}
	}
}

// TestFields shows, on every proxy, the effect of each field with two policies that
// differ only in the fields.
func TestFields(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		for _, with := range []bool{true, false} {
			text := "version: 1\nheaders: ietf\nrules:\n"
			for field, c := range allFieldCases() {
				text += c.text(field, with)
			}
			s := serve(t, d, text)
			for field, c := range allFieldCases() {
				c.walk(t, s.proxy, field, with)
			}
		}
	})
}

// Every field of the policy has one scenario, and no scenario would be the same
// without its field.
func TestEveryFieldHasAScenario(t *testing.T) {
	fields, cases := map[string]bool{}, maps.Collect(allFieldCases())
	for _, o := range policy.Schema() {
		for _, f := range o.Fields {
			field := o.Name + "." + f.Name
			fields[field] = true
			c, listed := cases[field]
			require.True(t, listed || fieldScenarios[field] != nil, "%s has no scenario: add one to fieldCases or fieldScenarios", field)
			if !listed {
				continue
			}
			require.Nil(t, fieldScenarios[field], "%s has two", field)
			require.NotEqual(t, c.text(field, true), c.text(field, false), field)
			differs := false
			for _, s := range c.steps {
				differs = differs || s.with != s.without
			}
			require.True(t, differs, "%s: the scenario shows no effect of the field", field)
			require.Contains(t, c.text(field, true), f.Name, "the scenario is about another field")
		}
	}
	require.Len(t, fields, len(cases)+len(fieldScenarios), "a scenario is for no field")
}
