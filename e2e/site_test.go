package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
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
	sites     = map[string]site{} // by driver
	scenario  int
)

// serve makes the driver's shared proxy run a policy in a new domain.
func serve(t *testing.T, d driver, policy string) site {
	t.Helper()
	s := siteOf(t, d)
	s.apply(t, policy)
	return s
}

// siteOf returns the driver's site with a new domain. At any time one test uses a site.
func siteOf(t *testing.T, d driver) site {
	t.Helper()
	sitesLock.Lock()
	s, running := sites[d.name]
	scenario++
	domain := fmt.Sprint("scenario-", scenario)
	sitesLock.Unlock()
	if !running {
		dir := filepath.Join(built.dir, d.name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		s.control = newControlPlane(t, dir)
		s.more = &listenerList{path: filepath.Join(dir, "lds.yaml")}
		s.more.write(t)
		s.proxy = d.launch(context.Background(), t, proxyOptions{node: "edge", xds: s.control.xds, workers: d.workers, edit: func(bootstrap []byte) []byte {
			return fmt.Appendf(bootstrap, "\ndynamic_resources: {lds_config: {resource_api_version: V3, path_config_source: {path: %s}}}\n", s.more.path)
		}})
		s.control.awaitConnected(t, "edge")
		sitesLock.Lock()
		sites[d.name] = s
		sitesLock.Unlock()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s\nlog of serve:\n%s", d.name, s.log(), s.control.log)
		}
	})
	s.domain = domain
	p := *s.proxy
	p.domain = domain
	s.proxy = &p
	return s
}

// filterName is the filter's name in a rendered bootstrap.
const filterName = "sluice"

// listen is start for a static policy that needs no Envoy of its own: it gets a
// listener, with a filter of another name, in an Envoy that has compiled the filter
// already. That takes an Envoy eight seconds of processor time.
func (d driver) listen(t *testing.T, o proxyOptions) *proxy {
	t.Helper()
	if d.envoy == "" {
		return d.start(t, o)
	}
	d = separate(d)
	if o.workers != 0 {
		d.name, d.workers = fmt.Sprint(d.name, "-", o.workers), o.workers
	}
	s := siteOf(t, d)
	bootstrap := bootstrapOf(t, s.inDomain(o.policy))
	if o.edit != nil {
		bootstrap = o.edit(bootstrap)
	}
	var document map[string]any
	require.NoError(t, yaml.Unmarshal(bootstrap, &document))
	listener := document["static_resources"].(map[string]any)["listeners"].([]any)[0].(map[string]any)
	listener["name"] = s.domain
	for _, filter := range managerOf(listener)["http_filters"].([]any) {
		if config, ok := filter.(map[string]any)["typed_config"].(map[string]any)["config"].(map[string]any); ok && config["name"] == filterName {
			config["name"], config["root_id"] = s.domain, s.domain
		}
	}
	s.more.listeners = []any{listener} // those of the tests before have done their work
	s.more.write(t)
	p := *s.proxy
	eventually(t, 20*time.Second, "the listener", func() (found bool) {
		address, err := s.envoy.Listener(t.Context(), s.domain)
		p.address = address
		return err == nil
	})
	p.await(t)
	return &p
}

// apply applies another policy in the scenario's domain.
func (s site) apply(t *testing.T, policy string, flags ...string) {
	t.Helper()
	s.control.apply(t, s.inDomain(policy), flags...)
}

// inDomain returns the policy in the scenario's domain.
func (s site) inDomain(policy string) string {
	return strings.Replace(policy, "version: 1", "version: 1\ndomain: "+s.domain, 1)
}

// runs returns the number of the revision that the proxy runs.
func (s site) runs(t *testing.T) uint64 {
	t.Helper()
	return s.control.proxies(t)["edge"].Runs
}

func stopSites() {
	for _, s := range sites {
		s.kill()
		_ = s.control.cmd.Process.Kill()
		_ = s.control.cmd.Wait()
	}
}
