package policydoc

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/testfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The schema of tests accepts what sluice test accepts, also of files that were changed at random.
func TestTestsSchemaAcceptsValidTests(t *testing.T) {
	text, err := TestsSchema()
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("test.schema.json", doc))
	schema, err := c.Compile("test.schema.json")
	require.NoError(t, err)

	dir := t.TempDir()
	name := filepath.Join(dir, "a.test.yaml")
	shop, err := os.ReadFile("testdata/tests/shop.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), shop, 0o600))
	tests, err := os.ReadFile("testdata/tests/shop.test.yaml")
	require.NoError(t, err)
	dice := rand.New(rand.NewPCG(1, 2))
	const rounds = 2000
	valid := 0
	for i := range rounds {
		n, err := policyfile.Parse("a", tests)
		require.NoError(t, err)
		for range i % 3 { // the first as it is
			mutate(t, dice, n)
		}
		text := policy.AppendJSON(nil, n)
		require.NoError(t, os.WriteFile(name, text, 0o600))
		if _, err := testfile.Read(name); err != nil {
			require.NotZero(t, i%3, "%v", err)
			continue
		}
		valid++
		require.NoError(t, accepts(t, schema, n), "%s", text)
	}
	require.Greater(t, valid, rounds/3)
	for _, wrong := range []string{
		`{"version":1,"policy":"p","tests":[]}`, `{"version":1,"policy":"p","tests":[{"name":"a","steps":[{"expekt":{}}]}]}`,
		`{"version":1,"policy":"p","tests":[{"name":"a","steps":[{"expect":{"status":"429"}}]}]}`,
	} {
		n, err := policy.ParseJSON([]byte(wrong))
		require.NoError(t, err)
		require.Error(t, accepts(t, schema, n), wrong)
	}
}

// A choice that values.go does not know would accept everything, and have no type in the reference. One
// that message/shape.go does not know would have no example in a message.
func TestEachChoiceHasForms(t *testing.T) {
	objects, _ := testfile.Schema()
	for _, o := range append(objects, policy.Schema()...) {
		for _, f := range o.Fields {
			if f.Shape.Form == policy.FormChoice {
				at := o.Name + "." + f.Name
				require.NotEmpty(t, typeOf(f.Shape).AnyOf, "%s: values.go of policydoc", at)
				require.NotEmpty(t, message.Shape(f.Shape), "%s: shape.go of policyfile/message", at)
			}
		}
	}
}
