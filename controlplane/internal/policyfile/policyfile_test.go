package policyfile_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The JSON made of a file is the one whose model shared/policy spells out, and that
// JSON is read the same way.
func TestReadGood(t *testing.T) {
	for name, warned := range map[string]int{"full": 1, "keys": 4, "limit_from": 0, "answers": 10, "edges": 13} {
		// of exact paths and an override by a header; of slots for all, what is free, calls without a
		// model, and windows that others imply
		data, err := os.ReadFile("testdata/good/" + name + ".yaml")
		require.NoError(t, err)
		p, n, warnings, err := policyfile.Read(name+".yaml", data)
		require.NoError(t, err)
		require.Len(t, warnings, warned)
		golden := "../../../shared/policy/testdata/" + name + ".json"
		if *update {
			require.NoError(t, os.WriteFile(golden, append(policy.AppendJSON(nil, n), '\n'), 0o644))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(string(want)), string(policy.AppendJSON(nil, n)))
		q, m, _, err := policyfile.Read(name+".json", want)
		require.NoError(t, err)
		require.Equal(t, p, q)
		require.Equal(t, policy.AppendJSON(nil, n), policy.AppendJSON(nil, m))
	}
}

// asJSON is the tree that a text is read as, or the error.
func asJSON(text string) string {
	n, err := policyfile.Parse("p", []byte(text))
	if err != nil {
		return err.Error()
	}
	return string(policy.AppendJSON(nil, n))
}

// yamlReadings are what a text is read as, or the error.
var yamlReadings = []struct{ name, text, want string }{
	{"words of YAML 1.1", "[on, off, yes, no, y, n, On, OFF]", `["on","off","yes","no","y","n","On","OFF"]`},
	{"booleans", "[true, False, TRUE]", `[true,false,true]`},
	{"nulls", "[~, null, NULL, '', \"\"]", `[null,null,null,"",""]`},
	{"empty value", "a:\nb: 1", `{"a":null,"b":1}`},
	{
		"numbers", "[0, -0, 10, 1.50, 1e3, 1E-2, 1e400, 123456789012345678901234567890]",
		`[0,-0,10,1.50,1e3,1E-2,1e400,123456789012345678901234567890]`,
	},
	{"numbers in quotes", `["10", '0x10']`, `["10","0x10"]`},
	{
		"timestamps", "[2024-01-01, 2001-12-14T21:59:43.10Z, 12:30, 12:30:45]",
		`["2024-01-01","2001-12-14T21:59:43.10Z","12:30","12:30:45"]`,
	},
	{
		"looks like a number", "[1.2.3, 1s, 10/1s, 1-2, '-', 10.0.0.0/8]",
		`["1.2.3","1s","10/1s","1-2","-","10.0.0.0/8"]`,
	},
	{
		"unusual field names", "on: 1\noff: 2\n'1': 3\n\"<<\": 4\n2024-01-01: 5",
		`{"on":1,"off":2,"1":3,"<<":4,"2024-01-01":5}`,
	},
	{"duplicates are kept", "a: 1\na: 2", `{"a":1,"a":2}`},
	{"alias", "a: &x {b: [1]}\nc: *x", `{"a":{"b":[1]},"c":{"b":[1]}}`},
	{"merge value", "a: <<", `{"a":"<<"}`},
	{"block text", "a: |\n  x\n  y\nb: >-\n  x\n  y", `{"a":"x\ny\n","b":"x y"}`},
	{"byte order mark", "\uFEFFa: 1", `{"a":1}`},
	{"document marks", "---\na: 1\n...\n", `{"a":1}`},
	{"carriage returns", "a: 1\r\nb:\r\n  - x\r\n", `{"a":1,"b":["x"]}`},
	{"JSON with tabs", "{\n\t\"a\": [\n\t\t1,\n\t\t\"b\\/\\u00e9\"\n\t]\n}", `{"a":[1,"b/é"]}`},
	{"JSON's own escapes", `{"a":"\/v1\/\ud83d\ude00"}`, `{"a":"/v1/😀"}`},
	{"JSON with a line separator", "{\"a\":\"x \u2028 y\"}", `{"a":"x \u2028 y"}`},
	{
		"broken JSON with tabs", "{\n\t\"a\": [\n\t\t@1\n\t]\n}",
		"p:3: invalid YAML: found character that cannot start any token: text that starts with a special character of " +
			"YAML (such as @, %, a backtick or a tab) must be in quotes",
	},
	{"JSON without spaces", `{"a":{"b":[1,{"c":"d"}]}}`, `{"a":{"b":[1,{"c":"d"}]}}`},

	{
		"underscores", "a: 1_000",
		"p:1:4: the number 1_000 must be written as a plain decimal number, without leading zeros, underscores, signs or " +
			"prefixes, or in quotes if it is text",
	},
	{"text tag", "a: !!str 1", "p:1:4: tags such as !!str have no meaning here: remove it, and write text in quotes"},
	{"own tag", "a: !x {}", "p:1:4: tags such as !x have no meaning here: remove it, and write text in quotes"},
	{
		"merge key", "x: &x {a: 1}\nb:\n  <<: *x",
		"p:3:3: merge keys (<<) are not supported: repeat the fields, or give the whole object by an alias",
	},
	{"field name from an alias", "a: &x b\n*x : 1", "p:2:1: a field's name must be plain text"},
	{"second document", "a: 1\n---\n", "p:2:1: a second document begins here: a file holds one"},
	{
		"broken second document", "a: 1\n---\na: [",
		"p:3: invalid YAML: did not find expected node content: a value is missing, a bracket is not closed, or text " +
			"must be in quotes",
	},
	{"nothing", "", "p: the text is empty"},
	{"blank", " \n\n", "p: the text is empty"},
	{"comment and mark", "# x\n---\n", "p: the text is empty"},
	{
		"control character", "a: \x01",
		"p:1: invalid YAML: control characters are not allowed: a control character: write it as an escape in double quotes",
	},
	{"UTF-16", "\xff\xfea\x00", "p:1:1: text that is not UTF-8: byte 0xff: save the file as UTF-8"},
	{
		"large and broken: the reader's own line", strings.Repeat("- a: 1\n", 100_000) + "b: : c\n",
		"p:100000: invalid YAML: did not find expected '-' indicator: the indentation does not fit the list above",
	},
	{"2 MiB", strings.Repeat("a", 2<<20), "p: the policy is 2097152 bytes, the most is 1048576"},
	{
		"grown by escapes", "a: \"" + strings.Repeat(`\0`, 500_000) + `"`,
		"p: the text is 3000169 bytes as JSON, the most is 1048576",
	},
}

func TestYAMLReadings(t *testing.T) {
	for _, tt := range yamlReadings {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, asJSON(tt.text)) })
	}
}

// Both ways a policy can arrive, as a file and as the JSON made of it, lead to
// the same tree and the same judgement.
func FuzzYAML(f *testing.F) {
	full, err := os.ReadFile("testdata/good/full.yaml")
	require.NoError(f, err)
	f.Add(string(full))
	keys, err := os.ReadFile("testdata/good/keys.yaml")
	require.NoError(f, err)
	f.Add(string(keys))
	for _, seed := range []string{
		"a: &x [1, *x]", "a: &x {b: 1}\nc: *x", "<<: {a: b}", "? [a]\n: b", "a: 0x10", "- 1e400\n- .5\n- +1\n- " +
			"1_0", "!!binary aGk=",
		"{\"a\":\"\\ud83d\\ude00\"}", "a: |\n\tx", "%YAML 1.2\n---\na", "- !<tag:x> " +
			"y", "'': ~", "a: 2024-01-01", "--- >\n x", "\"\\x00\\u2028\\_\"",
		"version: 1\nrules:\n  - name: a\n    limits: [1/s, 5 per 2 days]\n    mode: off\n",
		"version: 1\nname: edge\nproxies: {node: 'edge-*', metadata: {a: b}, trust: metadata}\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := policyfile.Parse("p", []byte(text))
		p, _, _, readErr := policyfile.Read("p", []byte(text))
		if err != nil {
			require.Error(t, readErr)
			require.Nil(t, p)
			return
		}
		written := policy.AppendJSON(nil, n)
		again, err := policy.ParseJSON(written)
		require.NoError(t, err, "%s", written)
		withoutPositions(n)
		require.Equal(t, n, again)
		head, rest := policy.SplitPlacement(again)
		_, errs := policy.ReadPlacement(head)
		q, more := policy.Read(rest)
		require.Equal(t, readErr == nil, len(errs)+len(more) == 0)
		if readErr != nil {
			return
		}
		require.Equal(t, p, q)
	})
}

func withoutPositions(n *policy.Node) {
	n.Line, n.Column = 0, 0
	for _, item := range n.Items {
		withoutPositions(item)
	}
	for i := range n.Fields {
		n.Fields[i].Line, n.Fields[i].Column = 0, 0
		withoutPositions(n.Fields[i].Value)
	}
}

var update = flag.Bool("update", false, "write what is seen into the golden files")

// Every bad policy is answered with exactly the problems beside it, and every valid one
// that is worth a warning gets exactly those.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		kind := filepath.Base(filepath.Dir(file))
		if kind == "good" {
			continue
		}
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			p, n, warnings, err := policyfile.Read(filepath.Base(file), data)
			if kind == "warned" {
				require.NoError(t, err)
				require.NotEmpty(t, warnings)
				requireGolden(t, file, policyfile.Errors(warnings).Error()+"\n")
				return
			}
			var errs policyfile.Errors
			require.ErrorAs(t, err, &errs)
			require.Nil(t, p)
			require.Nil(t, n)
			requireGolden(t, file, err.Error()+"\n")
		})
	}
}

// requireGolden compares with the .txt file beside the .yaml file.
func requireGolden(t *testing.T, file, got string) {
	t.Helper()
	golden := strings.TrimSuffix(file, ".yaml") + ".txt"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
