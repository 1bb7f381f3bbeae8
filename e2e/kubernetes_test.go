package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWasmPluginsSideBySide: Istio sets no vm_id, so all plugins of a proxy share their
// shared data and, with the same code, one VM. Our plugins share a counter if they
// define it and its windows alike, and have separate ones otherwise.
func TestWasmPluginsSideBySide(t *testing.T) {
	t.Parallel()
	policy := func(domain, path, limit string) string {
		return "version: 1\n" + domain + "rules: [{name: per-user, match: {paths: [" + path + "]}, key: [{header: x-user-id}], limits: [" + limit + "]}]\n"
	}
	eachEnvoy(t, func(t *testing.T, d driver) {
		first := policy("", "/a", "4/"+far)
		p := d.start(t, proxyOptions{policy: first, edit: func(bootstrap []byte) []byte {
			chain := []any{asPlugin(t, "first", first), asPlugin(t, "window", policy("", "/b", "2/300d")),
				asPlugin(t, "alike", policy("", "/c", "6/"+far)), asPlugin(t, "separate", policy("domain: other\n", "/d", "3/"+far))}
			return edited(t, bootstrap, func(static object) {
				manager := managerOf(listenersOf(static)[0])
				manager["http_filters"] = append(chain, manager["http_filters"].([]any)[1:]...)
			})
		}})
		for _, step := range []struct {
			path string
			want int
		}{{"/a", 4}, {"/b", 2}, {"/c", 6 - 4}, {"/d", 3}, {"/a", 0}, {"/e", 40}} {
			statuses := p.load(4).send(t, 40, func(int) request { return request{step.path, "x-user-id", "alice"} })
			require.Equal(t, step.want, count(statuses, allowed), step.path)
		}
	})
}

// asPlugin returns the filter with a policy as Istio configures a WasmPlugin of that name.
func asPlugin(t *testing.T, name, policy string) (filter any) {
	edited(t, bootstrapOf(t, policy), func(static object) {
		plugin := managerOf(listenersOf(static)[0])["http_filters"].([]any)[0].(map[string]any)
		config := plugin["typed_config"].(map[string]any)["config"].(map[string]any)
		delete(config, "capability_restriction_config")
		config["name"], config["root_id"] = "shop."+name, filterName
		delete(config["vm_config"].(map[string]any), "vm_id")
		plugin["name"], filter = name, plugin
	})
	return filter
}
