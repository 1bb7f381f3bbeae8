package docs_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestEnvoyPage puts the filter into the page's own configuration as the page says, and
// has a real Envoy limit by it, with a policy of its own and with a control plane.
func TestEnvoyPage(t *testing.T) {
	t.Parallel()
	p := newPage(t, "etc/envoy")
	p.write(t, "usr/local/bin/paste-parts", "#!/bin/bash\n"+pasting+`=1 exec "`+os.Args[0]+`" "$@"`+"\n", 0o755)
	p.run(t, document(t, "docs/envoy.md"), "EDITOR=paste-parts", "SLUICE_SERVER="+p.rewrite.Replace("http://127.0.0.1:18080"))
	log, err := os.ReadFile(filepath.Join(p.root, "envoy.log"))
	require.NoError(t, err)
	require.NotContains(t, strings.ToLower(string(log)), "deprecated")
}

// pasting makes this binary the editor of the page: it pastes the parts of sluice.yaml
// into the file that it is given.
const pasting = "DOCS_PASTE"

// object is a YAML mapping.
type object = map[string]any

func paste(file string) error {
	var own object
	text, err := os.ReadFile(file + ".own") // before anything was pasted
	if err != nil {
		text, err = os.ReadFile(file)
		err = errors.Join(err, os.WriteFile(file+".own", text, 0o600))
	}
	rendered, err2 := os.ReadFile("sluice.yaml")
	if err := errors.Join(err, err2, yaml.Unmarshal(text, &own)); err != nil {
		return err
	}
	var parts [3]object
	documents := yaml.NewDecoder(bytes.NewReader(rendered))
	for i := range parts {
		if err := documents.Decode(&parts[i]); err != nil {
			return err
		}
	}
	first := func(list any) object { return list.([]any)[0].(object) }
	listener := first(own["static_resources"].(object)["listeners"])
	manager := first(first(listener["filter_chains"])["filters"])["typed_config"].(object)
	manager["http_filters"] = append(parts[0]["http_filters"].([]any), manager["http_filters"].([]any)...) // before the router
	merge(manager, parts[1])
	merge(own, parts[2])
	if text, err = yaml.Marshal(own); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// merge adds fields to an object, and entries to its lists.
func merge(into, from object) {
	for name, value := range from {
		switch had := into[name].(type) {
		case object:
			merge(had, value.(object))
		case []any:
			into[name] = append(had, value.([]any)...)
		default:
			into[name] = value
		}
	}
}
