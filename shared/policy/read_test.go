package policy_test

import (
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func parse(t *testing.T, text string) *policy.Node {
	t.Helper()
	n, err := policy.ParseJSON([]byte(text))
	require.NoError(t, err)
	return n
}

func messages(problems []policy.Problem) []string {
	var list []string
	for i := range problems {
		list = append(list, problems[i].Error())
	}
	return list
}

var update = flag.Bool("update", false, "rewrite the golden policies in testdata")

// TestGolden reads every notation of each field, with its defaults, and compares what it means:
// all fields that are not zero, and what counters are found by, which stays.
func TestGolden(t *testing.T) {
	for _, name := range []string{"full", "keys", "answers"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		require.NoError(t, err)
		p, problems := policy.Read(parse(t, string(data)))
		require.Empty(t, messages(problems))
		wellFormed(t, p)
		policyFields := notZero(reflect.ValueOf(p)).(map[string]any)
		rules := policyFields["Rules"].([]any)
		delete(policyFields, "Rules")
		got, err := json.Marshal(policyFields)
		require.NoError(t, err)
		for i, rule := range rules {
			line, err := json.Marshal(rule)
			require.NoError(t, err)
			got = fmt.Appendf(got, "\n\n%s\n%s", p.Rules[i].KeyDefinition(), line)
		}
		if *update {
			require.NoError(t, os.WriteFile("testdata/"+name+".golden", got, 0o644))
		}
		want, err := os.ReadFile("testdata/" + name + ".golden")
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}

// notZero is a value as lists and maps, without the fields that are zero.
func notZero(v reflect.Value) any {
	switch text, ok := v.Interface().(encoding.TextMarshaler); {
	case ok:
		b, _ := text.MarshalText()
		return string(b)
	case v.Type() == reflect.TypeFor[*automaton.Automaton]():
		return "compiled"
	}
	switch v.Kind() {
	case reflect.Pointer:
		return notZero(v.Elem())
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				fields[v.Type().Field(i).Name] = notZero(f)
			}
		}
		return fields
	case reflect.Slice:
		items := []any{}
		for i := range v.Len() {
			items = append(items, notZero(v.Index(i)))
		}
		return items
	default:
		return v.Interface()
	}
}

// rule is a policy of one rule with these fields beside its name and limits.
func rule(fields string) string {
	return `{"version":1,"rules":[{"name":"a","limits":[]` + fields + `}]}`
}

func limits(items string) string {
	return `{"version":1,"rules":[{"name":"a","limits":[` + items + `]}]}`
}

func TestReadPushed(t *testing.T) {
	p, errs := policy.ReadPushed(parse(t, `{"version":1,"revision":"42","rules":[]}`))
	require.Empty(t, messages(errs))
	require.Equal(t, "42", p.Revision)
	p, errs = policy.ReadPushed(parse(t, `{"version":1,"rules":[]}`))
	require.Empty(t, messages(errs))
	require.Empty(t, p.Revision)
	_, errs = policy.ReadPushed(parse(t, `{"version":1,"revision":"`+strings.Repeat("9", 65)+`"}`))
	require.Equal(t, []string{"revision: too_long"}, messages(errs))
}

func TestPatternRegexpMatchesInFull(t *testing.T) {
	p, errs := policy.Read(parse(t, rule(`,"match":{"headers":{"h":"~a|bc"}}`)))
	require.Empty(t, messages(errs))
	re := p.Rules[0].Match.Headers[0].Value.Automaton
	for s, want := range map[string]bool{"a": true, "bc": true, "ac": false, "ab": false, "a\n": false, "": false} {
		require.Equal(t, want, re.Match(s), s)
	}
}

// Whatever the document, Read answers and does not panic.
func FuzzRead(f *testing.F) {
	full, err := os.ReadFile("testdata/full.json")
	require.NoError(f, err)
	f.Add(full)
	keys, err := os.ReadFile("testdata/keys.json")
	require.NoError(f, err)
	f.Add(keys)
	answers, err := os.ReadFile("testdata/answers.json")
	require.NoError(f, err)
	f.Add(answers)
	f.Add([]byte(rule(`,"key":[{"header":"x"},"host",{"path":{"segment":1}}]`)))
	f.Add([]byte(`{"version":1,"rules":[{"name":"a","key":["host"],"algorithm":"sliding_window_log","limits":["5/1s",{"requests":1,"per":"1d","algorithm":"fixed_window","offset":"4h","jitter":"5%"}],"overrides":[{"key":["a*"],"unlimited":true},{"key":["*"],"limits":["9/1s"]}]},{"name":"b","counter":"a","key":["host"],"mode":"shadow","limits":[{"requests":1,"per":"1d","offset":"4h","jitter":5},{"requests":512,"per":"1s","algorithm":"sliding_window_log"}]}]}`))
	f.Add([]byte(limits(`{"requests":1,"per":"1s","burst":3,"algorithm":"token_bucket"},{"requests":1,"per":"2s","elastic":true,"algorithm":"fixed_window_per_key"}`)))
	f.Add([]byte(limits(`"1/s; 2/m",{"requests":1e3,"per":"1d","offset":"0"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := policy.ParseJSON(data)
		if err != nil {
			return
		}
		p, errs := policy.Read(n)
		require.Equal(t, p == nil, len(errs) > 0)
		for i := range errs {
			require.NotEmpty(t, errs[i].Code)
			require.True(t, json.Valid(data))
		}
		if p != nil {
			wellFormed(t, p)
		}
	})
}
