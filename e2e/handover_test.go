package e2e

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/ports"
)

// A listener with a new policy takes several seconds to become ready. The filter does
// not mistake it for a sibling: it continues with the old listener's counts.
func TestListenerThatIsNotReadyForLong(t *testing.T) {
	t.Parallel()
	const waits = 8 * time.Second
	everyEnvoy(t, func(t *testing.T, d driver) {
		s := siteOf(t, d)
		p := s.listen(t, proxyOptions{policy: perUser("5/" + far)})
		require.Equal(t, 5, count(p.load(4).send(t, 20, user("alice")), allowed))
		const updates = "listener_manager.listener_in_place_updated"
		began, before := time.Now(), s.stat(t, updates)
		s.offer(t, late(t, bootstrapOf(t, s.inDomain(perUser("5/"+far+", 50/365d"))), waits))
		eventually(t, time.Minute, "the new listener", func() bool {
			require.Zero(t, count(p.load(4).send(t, 8, user("alice")), allowed))
			return s.stat(t, updates) > before && s.stat(t, "listener_manager.total_listeners_warming") == 0
		})
		require.Greater(t, time.Since(began), 7*time.Second, "it was not ready all the time")
		require.Zero(t, count(p.load(16).send(t, 64, user("alice")), allowed))
	})
}

// listenerList is a file from which an Envoy reads listeners.
type listenerList struct {
	path      string
	mu        sync.Mutex
	version   int
	listeners map[string][]any // by scenario
	addresses map[string]any   // by the listener's name
}

// address returns where the listener is. A new listener at port 0 would get the socket
// of one that drains.
func (l *listenerList) address(t *testing.T, listener string) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addresses[listener] == nil {
		free, err := ports.Free(1)
		require.NoError(t, err)
		l.addresses[listener] = map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": free[0]}}
	}
	return l.addresses[listener]
}

// set replaces a scenario's listeners. Those of scenarios that were dropped go with it.
func (l *listenerList) set(t *testing.T, scenario string, listeners []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners[scenario] = listeners
	l.write(t)
}

func (l *listenerList) drop(scenario string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, scenario)
}

// write writes the listeners to the file, which makes Envoy read it.
func (l *listenerList) write(t *testing.T) {
	l.version++
	all := []any{}
	for _, listeners := range l.listeners {
		for _, listener := range listeners {
			listener.(map[string]any)["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener"
			all = append(all, listener)
		}
	}
	file := marshaled(t, map[string]any{"version_info": fmt.Sprint(l.version), "resources": all})
	next := l.path + ".next"
	require.NoError(t, os.WriteFile(next, file, 0o600))
	require.NoError(t, os.Rename(next, l.path)) // Envoy watches for moved files
}

// late returns the bootstrap with a filter in front that delays its listener by waits.
func late(t *testing.T, bootstrap []byte, waits time.Duration) []byte {
	filter := map[string]any{"name": "late", "config_discovery": map[string]any{
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
	return edited(t, bootstrap, func(static object) {
		manager := managerOf(listenersOf(static)[0])
		manager["http_filters"] = append([]any{filter}, manager["http_filters"].([]any)...)
	})
}

// object is a YAML mapping.
type object = map[string]any

// edited returns the bootstrap with its static resources edited.
func edited(t *testing.T, bootstrap []byte, edit func(static object)) []byte {
	doc := unmarshaled(t, string(bootstrap))
	edit(doc["static_resources"].(object))
	return marshaled(t, doc)
}

func listenersOf(static object) []any { return static["listeners"].([]any) }

// bootstrapOf returns a static bootstrap with the policy.
func bootstrapOf(t *testing.T, policy string) []byte {
	return []byte(sluiceOK(t, "render", "envoy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--upstream", "127.0.0.1:9", "--wasm", built.filter, "--envoy-version", "1.36", "--access-log", "", "-f", file(t, "policy.yaml", policy)))
}

// managerOf returns the configuration of a listener's HTTP connection manager.
func managerOf(listener any) object {
	chain := listener.(object)["filter_chains"].([]any)[0].(object)
	return chain["filters"].([]any)[0].(object)["typed_config"].(object)
}

func marshaled(t *testing.T, doc any) []byte {
	text, err := yaml.Marshal(doc)
	require.NoError(t, err)
	return text
}

func unmarshaled(t *testing.T, text string) (doc object) {
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	return doc
}
