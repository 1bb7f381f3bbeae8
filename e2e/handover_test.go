package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/envoy"
)

// A listener with a new policy takes several seconds to become ready. The filter does
// not mistake it for a sibling: it continues with the old listener's counts.
func TestListenerThatIsNotReadyForLong(t *testing.T) {
	t.Parallel()
	const waits = 8 * time.Second
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			lds := &listenerFile{listenerList: listenerList{path: filepath.Join(t.TempDir(), "lds.yaml")}}
			p := d.start(t, proxyOptions{policy: perUser("5/" + far), edit: func(bootstrap []byte) []byte {
				return lds.take(t, bootstrap, freeAddress(t))
			}})
			require.Equal(t, 5, count(p.load(4).send(t, 20, user("alice")), allowed))
			began := time.Now()
			lds.update(t, perUser("5/"+far+", 50/365d"), waits)
			eventually(t, time.Minute, "the new listener", func() bool {
				require.Zero(t, count(p.load(4).send(t, 8, user("alice")), allowed))
				return updated(t, p)
			})
			require.Greater(t, time.Since(began), 7*time.Second, "it was not ready all the time")
			require.Zero(t, count(p.load(16).send(t, 64, user("alice")), allowed))
		})
	}
}

// listenerList is a file from which an Envoy reads listeners.
type listenerList struct {
	path      string
	version   int
	listeners []any
}

// write writes the listeners to the file, which makes Envoy read it.
func (l *listenerList) write(t *testing.T) {
	t.Helper()
	l.version++
	for _, listener := range l.listeners {
		listener.(map[string]any)["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener"
	}
	file := marshaled(t, map[string]any{"version_info": fmt.Sprint(l.version), "resources": l.listeners})
	next := l.path + ".next"
	require.NoError(t, os.WriteFile(next, file, 0o600))
	require.NoError(t, os.Rename(next, l.path)) // Envoy watches for moved files
}

// listenerFile is a file from which an Envoy reads its only listener.
type listenerFile struct {
	listenerList
	address  string
	listener map[string]any
}

// take moves the bootstrap's listener to the file and sets its address.
func (l *listenerFile) take(t *testing.T, bootstrap []byte, address string) []byte {
	t.Helper()
	var doc map[string]any
	require.NoError(t, yaml.Unmarshal(bootstrap, &doc))
	static := doc["static_resources"].(map[string]any)
	l.address = address
	l.listener = static["listeners"].([]any)[0].(map[string]any)
	delete(static, "listeners")
	doc["node"] = map[string]any{"id": "n", "cluster": "c"} // discovery needs one
	doc["dynamic_resources"] = map[string]any{"lds_config": map[string]any{
		"resource_api_version": "V3", "path_config_source": map[string]any{"path": l.path},
	}}
	l.write(t)
	return marshaled(t, doc)
}

// write writes the listener to the file.
func (l *listenerFile) write(t *testing.T) {
	t.Helper()
	host, text, err := net.SplitHostPort(l.address)
	require.NoError(t, err)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)
	l.listener["address"] = map[string]any{"socket_address": map[string]any{"address": host, "port_value": port}}
	l.listeners = []any{l.listener}
	l.listenerList.write(t)
}

// update gives the listener another policy, and a filter that delays it by waits.
func (l *listenerFile) update(t *testing.T, policy string, waits time.Duration) {
	t.Helper()
	filters := filtersOf(t, bootstrapOf(t, policy))
	late := map[string]any{"name": "late", "config_discovery": map[string]any{
		"config_source": map[string]any{
			"resource_api_version": "V3", "initial_fetch_timeout": fmt.Sprintf("%ds", int(waits.Seconds())),
			"api_config_source": map[string]any{ // never responds
				"api_type": "DELTA_GRPC", "transport_api_version": "V3",
				"grpc_services": []any{map[string]any{"envoy_grpc": map[string]any{"cluster_name": "upstream"}}},
			},
		},
		"type_urls": []any{"type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer"},
		"default_config": map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer", "max_request_bytes": 1000,
		},
	}}
	managerOf(l.listener)["http_filters"] = append([]any{late}, filters...)
	l.write(t)
}

// updated reports whether the listener was updated and is ready.
func updated(t *testing.T, p *proxy) bool {
	t.Helper()
	res, err := http.Get(p.admin + "/stats?filter=listener_manager.(listener_in_place|total_listeners_warming)")
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return strings.Contains(string(text), "listener_in_place_updated: 1\n") && strings.Contains(string(text), "warming: 0\n")
}

// bootstrapOf returns a static bootstrap with the policy.
func bootstrapOf(t *testing.T, policy string) []byte {
	t.Helper()
	text, errs, exit := sluice(t, "render", "envoy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--upstream", "127.0.0.1:9", "--wasm", built.filter, "--envoy-version", "1.36", "--access-log", "", "-f", file(t, "policy.yaml", policy))
	require.Zero(t, exit, errs)
	return []byte(text)
}

func filtersOf(t *testing.T, bootstrap []byte) []any {
	t.Helper()
	var doc map[string]any
	require.NoError(t, yaml.Unmarshal(bootstrap, &doc))
	listener := doc["static_resources"].(map[string]any)["listeners"].([]any)[0].(map[string]any)
	require.Equal(t, envoy.ListenerName, listener["name"])
	return managerOf(listener)["http_filters"].([]any)
}

// managerOf returns the configuration of a listener's HTTP connection manager.
func managerOf(listener map[string]any) map[string]any {
	chain := listener["filter_chains"].([]any)[0].(map[string]any)
	return chain["filters"].([]any)[0].(map[string]any)["typed_config"].(map[string]any)
}

func marshaled(t *testing.T, doc any) []byte {
	t.Helper()
	text, err := yaml.Marshal(doc)
	require.NoError(t, err)
	return text
}
