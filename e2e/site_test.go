package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// site is a control plane with one proxy, node "edge". All scenarios of a driver share
// it; each has its own domain, and so its own counters.
type site struct {
	*proxy
	control *controlPlane
	domain  string
}

var (
	sites    = map[string]site{} // by driver
	scenario int
)

// serve makes the driver's shared proxy run a policy in a new domain.
func serve(t *testing.T, d driver, policy string) site {
	t.Helper()
	s, running := sites[d.name]
	if !running {
		dir := filepath.Join(built.dir, d.name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		s.control = newControlPlane(t, dir)
		s.proxy = d.launch(context.Background(), t, proxyOptions{node: "edge", xds: s.control.xds})
		s.control.awaitConnected(t, "edge")
		sites[d.name] = s
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s\nlog of serve:\n%s", d.name, s.log(), s.control.log)
		}
	})
	scenario++
	s.domain = fmt.Sprint("scenario-", scenario)
	s.apply(t, policy)
	return s
}

// apply applies another policy in the scenario's domain.
func (s site) apply(t *testing.T, policy string, flags ...string) {
	t.Helper()
	s.control.apply(t, strings.Replace(policy, "version: 1", "version: 1\ndomain: "+s.domain, 1), flags...)
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

// serveAlone is serve with a new control plane and proxy for this test alone.
func serveAlone(t *testing.T, d driver, policy string) (*controlPlane, *proxy) {
	t.Helper()
	c := startControlPlane(t)
	p := d.start(t, proxyOptions{node: "edge", xds: c.xds})
	c.awaitConnected(t, "edge")
	c.apply(t, policy)
	return c, p
}
