package importer_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

var update = flag.Bool("update", false, "write what is seen into the golden files")

// importFile imports a file of testdata: that of a filter by the name local-*,
// else that of the service; its routes are beside it.
func importFile(t *testing.T, path string, cluster bool) (importer.Imported, error) {
	t.Helper()
	read := func(path string) importer.File {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return importer.File{Name: filepath.Base(path), Text: text}
	}
	o := importer.Options{Cluster: cluster}
	if routes := strings.TrimSuffix(path, ".yaml") + ".routes.yaml"; exists(routes) {
		f := read(routes)
		o.Routes = &f
	}
	if strings.HasPrefix(filepath.Base(path), "local-") {
		return importer.LocalRatelimit(read(path), o)
	}
	return importer.EnvoyRatelimit([]importer.File{read(path)}, o)
}

// What every file becomes with scope cluster is valid, and no note says that Envoys count
// for themselves. A connection's id means something in its own Envoy only.
func TestScopeCluster(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, ".routes.yaml") {
			continue
		}
		made, err := importFile(t, file, true)
		require.NoError(t, err, "%s\n%s", file, made.Policy)
		text := string(made.Policy)
		all := strings.Count(text, "  - name: ") - strings.Count(text, "[{property: [connection, id]}")
		require.Equal(t, all, strings.Count(text, "\n    scope: cluster\n"), text)
		require.NotContains(t, strings.ReplaceAll(text, "\n#   ", " "), "counts for itself", file)
	}
}

// Rules of one counter lease alike, though one of them alone counts denials.
func TestScopeClusterOfOneCounter(t *testing.T) {
	actions := "actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]"
	routes := importer.File{Name: "routes.yaml", Text: []byte(`virtual_hosts: [{domains: ["*"], routes: [
  {match: {prefix: /a/}, route: {cluster: c, rate_limits: [{` + actions + `}]}},
  {match: {prefix: /b/}, route: {cluster: c, rate_limits: [{hits_addend: {number: 2}, ` + actions + `}]}}]}]`)}
	limits := importer.File{Name: "config.yaml", Text: []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 9}}]\n")}
	made, err := importer.EnvoyRatelimit([]importer.File{limits}, importer.Options{Routes: &routes, Cluster: true})
	require.NoError(t, err, "%s", made.Policy)
	require.Equal(t, 2, strings.Count(string(made.Policy), "\n    lease: \"off\"\n"), "%s", made.Policy)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Each configuration of envoyproxy/ratelimit, of Envoy Gateway, and of Envoy's local rate
// limit filter (local-*) becomes a policy and notes (*.golden, written by -update).
// *.routes.yaml is the Envoy beside a service.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, ".routes.yaml") {
			continue
		}
		t.Run(file, func(t *testing.T) {
			made, err := importFile(t, file, false)
			require.NoError(t, err)
			seen := string(made.Policy) + "--- notes\n"
			for i := range made.Notes {
				seen += made.Notes[i].String() + "\n"
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(seen), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), seen)
		})
	}
}
