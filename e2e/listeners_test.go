package e2e

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// listenerList is a file from which an Envoy reads listeners.
type listenerList struct {
	path      string
	mu        sync.Mutex
	version   int
	listeners map[string][]any // by scenario
}

// set adds a scenario's listeners. Those of scenarios that were dropped go with it.
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
