package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// quickstart returns the path of the README's policy.
func quickstart() string { return filepath.Join(buildtest.Root(), "examples", "quickstart.yaml") }

// rendered returns the filter that Istio or Envoy Gateway makes from a resource that
// `sluice render` wrote.
func rendered(t *testing.T, read func([]byte) ([]buildtest.Resource, error), args ...string) buildtest.Resource {
	t.Helper()
	text, errs, exit := sluice(t, append([]string{"render"}, args...)...)
	require.Zero(t, exit, errs)
	list, err := read([]byte(text))
	require.NoError(t, err)
	require.Len(t, list, 1)
	return list[0]
}

// as is a proxy with its filters configured as Istio or Envoy Gateway does. In the
// simulator only the configuration differs.
func as(t *testing.T, first buildtest.Resource, more ...buildtest.Resource) proxyOptions {
	t.Helper()
	return proxyOptions{policy: first.Configuration, edit: func(bootstrap []byte) []byte {
		return asProduct(t, bootstrap, append([]buildtest.Resource{first}, more...))
	}}
}

// asProduct replaces the filter of a rendered bootstrap by a chain of filters as Istio
// or Envoy Gateway configures them.
func asProduct(t *testing.T, bootstrap []byte, resources []buildtest.Resource) []byte {
	t.Helper()
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal(bootstrap, &document))
	filters := at(t, document.Content[0], "static_resources", "listeners", "0", "filter_chains", "0", "filters", "0", "typed_config", "http_filters")
	text, err := yaml.Marshal(filters.Content[0])
	require.NoError(t, err)
	var chain []*yaml.Node
	for _, r := range resources {
		var filter map[string]any
		require.NoError(t, yaml.Unmarshal(text, &filter))
		config := filter["typed_config"].(map[string]any)["config"].(map[string]any)
		filter["name"] = r.Kind + "/" + r.Name
		delete(config, "capability_restriction_config") // neither Istio nor Envoy Gateway sets it
		config["name"], config["root_id"], config["failure_policy"] = r.Name, r.RootID, r.FailurePolicy
		config["vm_config"].(map[string]any)["vm_id"] = r.VMID
		config["configuration"].(map[string]any)["value"] = r.Configuration
		node := &yaml.Node{}
		require.NoError(t, node.Encode(filter))
		chain = append(chain, node)
	}
	filters.Content = append(chain, filters.Content[1:]...)
	out, err := yaml.Marshal(&document)
	require.NoError(t, err)
	return out
}

// at follows field names and indices into a document.
func at(t *testing.T, node *yaml.Node, path ...string) *yaml.Node {
	t.Helper()
	for _, step := range path {
		if node.Kind == yaml.SequenceNode {
			require.Equal(t, "0", step)
			node = node.Content[0]
			continue
		}
		var next *yaml.Node
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				next = node.Content[i+1]
			}
		}
		require.NotNil(t, next, step)
		node = next
	}
	return node
}

// TestWasmPluginsSideBySide: Istio sets no vm_id, so all plugins of a proxy share their
// shared data and, with the same code, one VM. Our plugins share a counter if they
// define it and its windows alike, and have separate ones otherwise.
func TestWasmPluginsSideBySide(t *testing.T) {
	t.Parallel()
	read := buildtest.Kubernetes(t)
	plugin := func(name, domain, path, limit string) buildtest.Resource {
		policy := "version: 1\n" + domain + "rules: [{name: per-user, match: {paths: [" + path + "]}, key: [{header: x-user-id}], limits: [" + limit + "]}]\n"
		return rendered(t, read, "istio", "--url", "oci://r.example/sluice:1", "-n", "shop", "--name", name, "-f", file(t, name+".yaml", policy))
	}
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			p := d.start(t, as(t, plugin("first", "", "/a", "4/"+far), plugin("window", "", "/b", "2/300d"), plugin("alike", "", "/c", "6/"+far),
				plugin("separate", "domain: other\n", "/d", "3/"+far)))
			for _, step := range []struct {
				path string
				want int
			}{{"/a", 4}, {"/b", 2}, {"/c", 6 - 4}, {"/d", 3}, {"/a", 0}, {"/e", 40}} {
				statuses := p.load(4).send(t, 40, func(int) request { return request{step.path, "x-user-id", "alice"} })
				require.Equal(t, step.want, count(statuses, allowed), step.path)
			}
		})
	}
}
