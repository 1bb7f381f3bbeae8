package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/ports"
)

// site is a control plane with one proxy, node "edge". All scenarios of a driver share
// it; each has its own domain, and so its own counters.
type site struct {
	*proxy
	control *controlPlane
	domain  string
	more    *listenerList // Envoy only
}

var (
	sitesLock sync.Mutex
	sites     = map[string]*sharedSite{} // by driver
	scenario  int
)

// sharedSite is a site as its first scenario starts it.
type sharedSite struct {
	starting sync.Mutex
	site     site
}

// serve makes the driver's shared proxy run a policy in a new domain.
func serve(t *testing.T, d driver, policy string) site {
	s := siteOf(t, d)
	s.apply(t, policy)
	return s
}

// siteOf returns the driver's site with a new domain. Only one test at a time applies policies
// to a site. Tests that have listeners of their own there may run at the same time.
func siteOf(t *testing.T, d driver) site {
	sitesLock.Lock()
	scenario++
	domain := fmt.Sprint("scenario-", scenario)
	shared := sites[d.name]
	if shared == nil {
		shared = &sharedSite{}
		sites[d.name] = shared
	}
	sitesLock.Unlock()
	shared.starting.Lock()
	defer shared.starting.Unlock()
	if shared.site.proxy == nil {
		shared.site = startSite(t, d)
	}
	s := shared.site
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s\nlog of serve:\n%s", d.name, s.log(), s.control.Log())
		}
	})
	s.domain = domain
	p := *s.proxy
	p.domain = domain
	s.proxy = &p
	return s
}

// direct is a path to which Envoy itself responds, as to those below it, so that a flood
// measures the filter.
const direct = "/direct"

func startSite(t *testing.T, d driver) (s site) {
	dir := filepath.Join(built.dir, d.name)
	require.NoError(t, os.Mkdir(dir, 0o700))
	s.control = newControlPlane(t, dir)
	s.more = &listenerList{path: filepath.Join(dir, "lds.yaml"), listeners: map[string][]any{}}
	s.more.write(t)
	s.proxy = d.launch(context.Background(), t,
		proxyOptions{node: "edge", xds: s.control.xds, edit: func(bootstrap []byte) []byte {
			const routes = "\n              routes:"
			text := replacing(routes, routes+
				"\n              - {match: {prefix: "+direct+
				"}, direct_response: {status: 200, body: {inline_string: hello}}}")(bootstrap)
			const listeners = "\ndynamic_resources: {lds_config: {resource_api_version: V3, path_config_source: {path: %s}}}\n"
			return fmt.Appendf(text, listeners, s.more.path)
		}})
	s.control.awaitConnected(t, "edge")
	return s
}

// filterName is the filter's name in a rendered bootstrap.
const filterName = "sluice"

// listen is start for a static policy that needs no Envoy of its own: it gets a
// listener in an Envoy that has compiled the filter already, which takes one eight
// seconds of processor time.
func (d driver) listen(t *testing.T, o proxyOptions) *proxy {
	if d.envoy == "" {
		return d.start(t, o)
	}
	return siteOf(t, d).listen(t, o)[0]
}

// listen adds the listeners of a static bootstrap to the site's Envoy. Their filter has another
// name than the site's, and shared data of its own: the site's may have an earlier filter, which
// knows fewer algorithms.
func (s site) listen(t *testing.T, o proxyOptions) (all []*proxy) {
	bootstrap := bootstrapOf(t, s.inDomain(o.policy))
	if o.edit != nil {
		bootstrap = o.edit(bootstrap)
	}
	var listeners []any
	edited(t, bootstrap, func(static object) { listeners = listenersOf(static) })
	free, err := ports.Free(len(listeners)) // at port 0 one would get the socket of one that drains
	require.NoError(t, err)
	for i, l := range listeners {
		listener := l.(object)
		listener["name"] = fmt.Sprint(s.domain, "-", i)
		listener["address"] = object{"socket_address": object{"address": "127.0.0.1", "port_value": free[i]}}
		for _, filter := range managerOf(listener)["http_filters"].([]any) {
			typed, _ := filter.(object)["typed_config"].(object)
			if config, ok := typed["config"].(object); ok && config["name"] == filterName {
				config["name"], config["root_id"] = s.domain, s.domain
				config["vm_config"].(object)["vm_id"] = s.domain
			}
		}
		p := *s.proxy
		p.address = fmt.Sprint("127.0.0.1:", free[i])
		all = append(all, &p)
	}
	s.more.set(t, s.domain, listeners)
	t.Cleanup(func() { s.more.drop(s.domain) })
	for _, p := range all {
		p.await(t)
	}
	return all
}

// apply applies another policy in the scenario's domain.
func (s site) apply(t *testing.T, policy string, flags ...string) {
	s.control.apply(t, s.inDomain(policy), flags...)
}

// inDomain returns the policy in the scenario's domain.
func (s site) inDomain(policy string) string {
	return strings.Replace(policy, "version: 1", "version: 1\ndomain: "+s.domain, 1)
}

// runs returns the number of the revision that the proxy runs.
func (s site) runs(t *testing.T) uint64 {
	return s.control.proxies(t)["edge"].Runs
}

func stopSites() {
	for _, shared := range sites {
		s := shared.site
		if s.proxy == nil {
			continue
		}
		s.kill()
		_ = s.control.Kill()
	}
}

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
		"--upstream", "127.0.0.1:9", "--wasm", built.filter, "--envoy-version", "1.36", "--access-log", "", "-f",
		file(t, "policy.yaml", policy)))
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
