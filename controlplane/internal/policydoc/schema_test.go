package policydoc

import (
	"bytes"
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

var update = flag.Bool("update", false, "write the schema and the reference into docs")

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := JSONSchema()
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	require.NoError(t, c.AddResource("policy.schema.json", doc))
	s, err := c.Compile("policy.schema.json") // which holds it against the draft
	require.NoError(t, err)
	return s
}

// accepts asks the validator.
func accepts(t *testing.T, s *jsonschema.Schema, n *policy.Node) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(policy.AppendJSON(nil, n)))
	require.NoError(t, err)
	return s.Validate(value)
}

func TestSchemaInDocs(t *testing.T) {
	text, err := JSONSchema()
	require.NoError(t, err)
	requireDoc(t, "policy.schema.json", string(text))
	text, err = TestsSchema()
	require.NoError(t, err)
	requireDoc(t, "test.schema.json", string(text))
}

// requireDoc compares with a generated file in docs.
func requireDoc(t *testing.T, name, want string) {
	t.Helper()
	file := filepath.Join(buildtest.Root(), "docs", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "go test ./controlplane/internal/policydoc -update")
}

var fenced = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// validPolicies are all policies of the repository: of its test data, examples
// and documents.
func validPolicies(t *testing.T) map[string]*policy.Node {
	t.Helper()
	found := map[string]*policy.Node{}
	add := func(name, text string) {
		_, n, _, err := policyfile.Read(name, []byte(text))
		require.NoError(t, err, name)
		found[name] = n
	}
	for _, pattern := range []string{
		"controlplane/internal/policyfile/testdata/good/*.yaml", "shared/policy/testdata/full.json",
		"examples/*.yaml", "docs/*.md", "README.md",
	} {
		files, err := filepath.Glob(filepath.Join(buildtest.Root(), pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			if strings.HasSuffix(file, ".test.yaml") {
				continue // not a policy
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			if !strings.HasSuffix(file, ".md") {
				add(file, string(text))
				continue
			}
			for i, m := range fenced.FindAllStringSubmatch(string(text), -1) {
				if strings.HasPrefix(m[1], "- ") {
					m[1] = "version: 1\nrules:\n" + m[1]
				}
				if strings.HasPrefix(m[1], "version:") {
					add(file+"#"+string(rune('a'+i)), m[1])
				}
			}
		}
	}
	return found
}

// oddities are values that may stand anywhere, and rarely may.
var oddities = lines("testdata/oddities.txt")

// lines are the lines of a file.
func lines(name string) []string {
	text, err := os.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// mutate changes something somewhere in the tree.
func mutate(t *testing.T, dice *rand.Rand, n *policy.Node) {
	t.Helper()
	var all []*policy.Node
	var walk func(n *policy.Node)
	walk = func(n *policy.Node) {
		all = append(all, n)
		for _, item := range n.Items {
			walk(item)
		}
		for i := range n.Fields {
			walk(n.Fields[i].Value)
		}
	}
	walk(n)
	at := all[dice.IntN(len(all))]
	odd, err := policy.ParseJSON([]byte(oddities[dice.IntN(len(oddities))]))
	require.NoError(t, err)
	switch choice := dice.IntN(4); {
	case choice == 0 && len(at.Fields) > 1:
		i := dice.IntN(len(at.Fields))
		at.Fields = append(at.Fields[:i:i], at.Fields[i+1:]...)
	case choice == 1 && at.Kind == policy.Object:
		at.Fields = append(at.Fields, policy.Field{Name: fieldNames[dice.IntN(len(fieldNames))], Value: odd})
	case choice == 2 && at.Kind == policy.List:
		at.Items = append(at.Items, odd)
	default:
		*at = *odd
	}
}

var fieldNames = func() (names []string) {
	for _, o := range objects() {
		for _, f := range o.node.Properties {
			names = append(names, f.name)
		}
	}
	return names
}()

// mutated calls each with policies that are valid ones changed at random, so many times each.
func mutated(t *testing.T, times int, each func(name string, text []byte)) {
	t.Helper()
	dice := rand.New(rand.NewPCG(1, 2))
	policies := validPolicies(t)
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		text := policy.AppendJSON(nil, policies[name])
		for range times {
			n, err := policy.ParseJSON(text)
			require.NoError(t, err)
			for range 1 + dice.IntN(2) {
				mutate(t, dice, n)
			}
			each(name, policy.AppendJSON(nil, n))
		}
	}
}

// Whatever the reader accepts the schema accepts.
func TestSchemaRefusesNothingValid(t *testing.T) {
	s := compiled(t)
	for name, n := range validPolicies(t) {
		require.NoError(t, accepts(t, s, n), name)
	}
	var valid, invalid, refused int
	mutated(t, 300, func(name string, text []byte) {
		n, err := policy.ParseJSON(text)
		require.NoError(t, err)
		verdict := accepts(t, s, n)
		if _, errs := policy.Read(n); len(errs) == 0 {
			valid++
			require.NoError(t, verdict, "%s: %s", name, text)
			return
		}
		invalid++
		if verdict != nil {
			refused++
		}
	})
	t.Logf("%d changed policies stayed valid; of %d that did not the schema refuses %d", valid, invalid, refused)
	require.Greater(t, valid, 300)
	require.Greater(t, 10*refused, 9*invalid, "what the schema is for")
}

// What a person may write, in YAML or JSON, and what the filter takes is the same: the
// judgement, and the policy that comes of it.
func TestFilterTakesWhatValidateTakes(t *testing.T) {
	options := sim.Options{Wasm: buildtest.Wasm(t), CacheDir: buildtest.CacheDir(), PluginName: "sluice"}
	h, err := sim.New(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	var taken, refused, shown int
	mutated(t, 100, func(_ string, text []byte) {
		p, n, _, err := policyfile.Read("p.json", text)
		q, m, _, err2 := policyfile.Read("p.yaml", asYAML(t, text))
		require.Equal(t, err == nil, err2 == nil, "%s\n%v\n%v", text, err, err2)
		require.Equal(t, p, q, "%s", text)
		tree, _ := policy.ParseJSON(text)
		isOfFilter := bytes.Equal(policy.PushedJSON(tree), text)
		if err == nil || isOfFilter {
			shown++
			if shown%20 == 0 { // a machine of its own for each makes this slow
				require.Equal(t, err == nil, h.Configure(policy.PushedJSON(tree)) == nil, "%s\n%v", text, err)
			}
		}
		if err != nil {
			refused++
			return
		}
		taken++
		require.Equal(t, policy.AppendJSON(nil, n), policy.AppendJSON(nil, m), "%s", text)
		tree, err = policy.ParseJSON(policy.PushedJSON(n))
		require.NoError(t, err, "%s", text)
		again, problems := policy.ReadPushed(tree)
		require.Empty(t, problems, "%s", text)
		require.Equal(t, p, again, "%s", text)
	})
	t.Log(taken, "policies taken,", refused, "refused")
	require.Greater(t, taken, 150)
}

// asYAML writes JSON as the YAML that a person might.
func asYAML(t *testing.T, text []byte) []byte {
	t.Helper()
	var n yaml.Node
	require.NoError(t, yaml.Unmarshal(text, &n))
	var plain func(n *yaml.Node)
	plain = func(n *yaml.Node) {
		n.Style = 0
		for _, c := range n.Content {
			plain(c)
		}
	}
	plain(&n)
	out, err := yaml.Marshal(&n)
	require.NoError(t, err)
	return out
}

// What a schema can tell of one field, this one does: every form, once wrong.
func TestSchemaRefuses(t *testing.T) {
	s := compiled(t)
	forms := strings.NewReplacer(
		"rule: ", `{"version":1,"rules":[{"name":"a","limits":["1/1s"],"key":["host"],`,
		"limit: ", `{"version":1,"rules":[{"name":"a","limits":[{"requests":1,"per":"1s",`,
	)
	ends := map[string]string{"rule": "}]}", "limit": "}]}]}"}
	for _, line := range lines("testdata/refused.txt") {
		form, _, _ := strings.Cut(line, ": ")
		doc := forms.Replace(line) + ends[form]
		n, err := policy.ParseJSON([]byte(doc))
		require.NoError(t, err)
		_, errs := policy.Read(n)
		require.NotEmpty(t, errs, "the reader takes it: %s", doc)
		require.Error(t, accepts(t, s, n), doc)
	}
}
