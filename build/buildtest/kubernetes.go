package buildtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Resource is a resource as its product decodes it.
type Resource struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

// Policy is the policy in a resource of Istio or Envoy Gateway.
func (r Resource) Policy(tb testing.TB) string {
	tb.Helper()
	type config struct{ PluginConfig, Config, Wasm json.RawMessage }
	var spec, wasm config
	require.NoError(tb, json.Unmarshal(r.Spec, &spec))
	if spec.Wasm == nil {
		return string(spec.PluginConfig)
	}
	require.NoError(tb, json.Unmarshal(bytes.Trim(spec.Wasm, "[]"), &wasm)) // one, alone or in a list
	return string(append(wasm.PluginConfig, wasm.Config...))
}

// Kubernetes compiles the reader of resources in envoy/testdata/kubernetes, which has the
// published types of Kubernetes, Istio and Envoy Gateway and a module of its own, and
// returns it. It refuses what they do not know.
func Kubernetes(tb testing.TB) func(resources []byte) ([]Resource, error) {
	tb.Helper()
	binary := filepath.Join(tb.TempDir(), "kubernetes")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-o", binary, ".")
	cmd.Dir = filepath.Join(Root(), "envoy", "testdata", "kubernetes")
	out, err := cmd.CombinedOutput()
	require.NoError(tb, err, string(out))
	return func(resources []byte) ([]Resource, error) {
		read := exec.CommandContext(tb.Context(), binary)
		var out, errs bytes.Buffer
		read.Stdin = bytes.NewReader(resources)
		read.Stdout = &out
		read.Stderr = &errs
		if err := read.Run(); err != nil {
			return nil, errors.New(strings.TrimSpace(errs.String()))
		}
		var list []Resource
		for lines := json.NewDecoder(&out); lines.More(); {
			var r Resource
			if err := lines.Decode(&r); err != nil {
				return nil, err
			}
			list = append(list, r)
		}
		return list, nil
	}
}
