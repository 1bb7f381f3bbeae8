package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// Two filters of one name in one Envoy, with different policies that use the
// same names, count apart.
func TestFiltersOfOneName(t *testing.T) {
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			first := perUser("5/" + far)
			second := perUser("50/365d")
			p := d.start(t, proxyOptions{policy: first, edit: func(bootstrap []byte) []byte {
				return withSecondListener(t, bootstrap, second)
			}})
			address, err := p.envoy.Listener(t.Context(), "second")
			require.NoError(t, err)
			other := load{address, 4}
			// Each has been asked once by each worker, which is how the filter
			// finds out.
			p.load(16).send(t, 32, user("early"))
			other.send(t, 32, user("early"))
			for range 2 {
				p.load(16).send(t, 32, user("early"))
			}
			passed, otherPassed := 0, 0
			for range 10 {
				passed += count(p.load(4).send(t, 20, user("alice")), allowed)
				otherPassed += count(other.send(t, 20, user("alice")), allowed)
			}
			require.Equal(t, 5, passed)
			require.Equal(t, 50, otherPassed)
		})
	}
}

// withSecondListener adds a listener with a filter of the same name and another
// policy.
func withSecondListener(t *testing.T, bootstrap []byte, policy string) []byte {
	t.Helper()
	rendered, errs, exit := sluice(t, "render", "envoy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--upstream", "127.0.0.1:9", "--wasm", built.filter, "-f", file(t, "second.yaml", policy))
	require.Zero(t, exit, errs)
	type document struct {
		Static struct {
			Listeners []map[string]any `yaml:"listeners"`
		} `yaml:"static_resources"`
	}
	var from document
	require.NoError(t, yaml.Unmarshal([]byte(rendered), &from))
	from.Static.Listeners[0]["name"] = "second"
	var into map[string]any
	require.NoError(t, yaml.Unmarshal(bootstrap, &into))
	static := into["static_resources"].(map[string]any)
	static["listeners"] = append(static["listeners"].([]any), from.Static.Listeners[0])
	out, err := yaml.Marshal(into)
	require.NoError(t, err)
	return out
}
