package examples_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/charttest"
)

var update = flag.Bool("update", false, "write the table of values into the chart's README")

const tableHead = "| value | default | |\n|---|---|---|\n"

// The chart's README has a row for each value, made of values.schema.json and values.yaml.
func TestTableOfValues(t *testing.T) {
	var schema, defaults yaml.Node
	readYAML(t, "values.schema.json", &schema) // JSON is YAML, and a node keeps its order
	readYAML(t, "values.yaml", &defaults)
	var table strings.Builder
	table.WriteString(tableHead)
	addRows(t, &table, "", schema.Content[0], defaults.Content[0])

	file := filepath.Join(charttest.Dir(), "README.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	head, _, found := strings.Cut(string(text), tableHead)
	require.True(t, found, "the README ends with the table of values")
	require.Contains(t, head, values(t)["least"])
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(head+table.String()), 0o600))
		return
	}
	require.Equal(t, head+table.String(), string(text), "run go test ./examples -update")
}

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(charttest.Dir(), name))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, into))
}

// addRows adds a row for each value below an object that has no values below it. Every value has a
// description, and a default that the schema knows.
func addRows(t *testing.T, table *strings.Builder, at string, schema, defaults *yaml.Node) {
	t.Helper()
	properties := member(schema, "properties")
	if defaults != nil && defaults.Kind == yaml.MappingNode && properties != nil {
		for i := 0; i < len(defaults.Content); i += 2 {
			name := defaults.Content[i].Value
			require.NotNil(t, member(properties, name), "values.yaml has %s%s, the schema has not", at, name)
		}
	}
	for i := 0; i < len(properties.Content); i += 2 {
		name, value := at+properties.Content[i].Value, properties.Content[i+1]
		description := member(value, "description")
		require.NotNil(t, description, "%s has no description", name)
		def := member(defaults, properties.Content[i].Value)
		if member(value, "properties") != nil && name != "tls.issuer" {
			addRows(t, table, name+".", value, def)
			continue
		}
		var shown string
		if def != nil && name != "global" {
			var v any
			require.NoError(t, def.Decode(&v))
			text, err := json.Marshal(v)
			require.NoError(t, err)
			shown = "`" + string(text) + "`"
		}
		fmt.Fprintf(table, "| `%s` | %s | %s |\n", name, shown, description.Value)
	}
}

// member returns the value of an object's member, nil without one.
func member(object *yaml.Node, name string) *yaml.Node {
	if object == nil {
		return nil
	}
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == name {
			return object.Content[i+1]
		}
	}
	return nil
}
