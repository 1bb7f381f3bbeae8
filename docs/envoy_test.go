package docs_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// object is a YAML mapping.
type object = map[string]any

// TestEnvoyPage puts the page's filter into a bootstrap that a user might have, both
// ways, and has a real Envoy limit by it. Nothing answers as the control plane.
func TestEnvoyPage(t *testing.T) {
	t.Parallel()
	d, wasm, s := document(t, "docs/envoy.md"), buildtest.Filter(t), build(t)
	rendered, err := s.run("", "", "render", "envoy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--upstream", "127.0.0.1:1", "--xds", "127.0.0.1:1", "--node", "rendered", "--wasm", wasm)
	require.NoError(t, err, rendered)
	read := func(name string) (o object) {
		for _, f := range d.fences() {
			if f.file == name {
				require.NoError(t, yaml.Unmarshal([]byte(strings.ReplaceAll(f.text, "/usr/lib/sluice/sluice.wasm", wasm)), &o))
			}
		}
		require.NotNil(t, o, name)
		return o
	}
	first := func(list any) object { return list.([]any)[0].(object) }
	filter, discovered := first(read("filter.yaml")["http_filters"]), first(read("discovery.yaml")["http_filters"])
	discovered["config_discovery"].(object)["default_config"] = filter["typed_config"]
	// One Envoy compiles the filter once, for both.
	var bootstrap object
	var listeners []any
	pages := map[string]object{"static": filter, "discovered": discovered}
	for name, page := range pages {
		require.NoError(t, yaml.Unmarshal([]byte(rendered), &bootstrap))
		listener := first(bootstrap["static_resources"].(object)["listeners"])
		listener["name"] = name
		manager := first(first(listener["filter_chains"])["filters"])["typed_config"].(object)
		manager["http_filters"].([]any)[0] = page
		route := first(first(manager["route_config"].(object)["virtual_hosts"])["routes"])
		delete(route, "route")
		route["direct_response"] = object{"status": http.StatusOK}
		listeners = append(listeners, listener)
	}
	bootstrap["static_resources"].(object)["listeners"] = listeners
	bootstrap["node"] = read("node.yaml")["node"]
	text, err := yaml.Marshal(bootstrap)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	e, err := proc.Start(ctx, proc.Options{Bootstrap: text, LogTo: log})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Stop()) }()
	require.NoError(t, e.WaitReady(ctx))
	for name := range pages {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, []int{200, 200, 200, 429}, visit(t, ctx, e, name, 4))
		})
	}
}

// visit returns what a listener answers to so many requests of one user, who has the
// listener's name.
func visit(t *testing.T, ctx context.Context, e *proc.Process, name string, times int) (statuses []int) {
	t.Helper()
	address, err := e.Listener(ctx, name)
	require.NoError(t, err)
	for range times {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, http.NoBody)
		require.NoError(t, err)
		request.Header.Set("x-user-id", name)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		statuses = append(statuses, response.StatusCode)
	}
	return statuses
}
