package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// controlPlane is a running `sluice serve`.
type controlPlane struct {
	*child.Child

	data, xds, http string   // directory and addresses
	store           string   // URL of its store, instead of data
	flags           []string // further flags of serve
}

// startControlPlane starts a control plane for this test alone, with further flags of serve.
func startControlPlane(t *testing.T, flags ...string) *controlPlane {
	c := newControlPlane(t, t.TempDir(), flags...)
	t.Cleanup(func() { c.kill(t) })
	return c
}

func newControlPlane(t *testing.T, dir string, flags ...string) *controlPlane {
	c := &controlPlane{data: filepath.Join(dir, "data"), xds: freeAddress(t), http: freeAddress(t), flags: flags}
	c.start(t)
	return c
}

// start starts serve, also again after a kill: with the same data and addresses.
func (c *controlPlane) start(t *testing.T) {
	tokenFile := filepath.Join(filepath.Dir(c.data), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(token+"\n"), 0o600))
	where := []string{"--data", c.data}
	if c.store != "" {
		where = []string{"--store", c.store}
	}
	args := []string{"serve", where[0], where[1], "--xds", c.xds, "--http", c.http, "--manage-token-file", tokenFile}
	var err error
	c.Child, err = child.Start(exec.Command(built.sluice, append(args, c.flags...)...))
	require.NoError(t, err)
	require.NoError(t, c.Until(t.Context(), "answer", func() bool { return answered(c.url() + "/healthz") }))
}

// kill ends serve as kill -9 does.
func (c *controlPlane) kill(t *testing.T) {
	end(t, c.Child)
}

func (c *controlPlane) url() string { return "http://" + c.http }

// apply applies a policy and requires every connected proxy to take it.
func (c *controlPlane) apply(t *testing.T, policy string, flags ...string) {
	sluiceOK(t, c.applying(t, policy, flags...)...)
}

// applying is the command that applies a policy.
func (c *controlPlane) applying(t *testing.T, policy string, flags ...string) []string {
	return append([]string{"apply", "-f", file(t, "policy.yaml", policy), "--server", c.url(), "--wait", "60s"}, flags...)
}

// proxyStatus is what `sluice status` prints for one proxy.
type proxyStatus struct {
	Node      string
	Connected bool
	Waiting   bool
	Runs      uint64
	Nacked    uint64
}

func (c *controlPlane) proxies(t *testing.T) map[string]proxyStatus {
	byNode := map[string]proxyStatus{}
	for _, p := range asked[struct{ Proxies []proxyStatus }](t, c, "status").Proxies {
		byNode[p.Node] = p
	}
	return byNode
}

// asked is what a command of the control plane says as JSON.
func asked[T any](t *testing.T, c *controlPlane, args ...string) T {
	return decoded[T](t, sluiceOK(t, append(args, "--server", c.url(), "--output", "json")...))
}

// awaitConnected waits until the proxy has a stream to the control plane.
func (c *controlPlane) awaitConnected(t *testing.T, node string) {
	eventually(t, time.Minute, node+" to connect", func() bool { return c.proxies(t)[node].Connected })
}

// proxy starts a proxy of this control plane.
func (c *controlPlane) proxy(t *testing.T, d driver, o proxyOptions) *proxy {
	o.xds = c.xds
	p := d.start(t, o)
	c.awaitConnected(t, o.node)
	return p
}

// push stores a revision over the HTTP API, without starting a process, and waits for
// the outcome on every connected proxy.
func (c *controlPlane) push(t *testing.T, policy string) {
	res, err := http.Post(c.url()+"/v1/policies?file=policy.yaml", "application/yaml", strings.NewReader(policy))
	require.NoError(t, err)
	var stored struct{ Number uint64 }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&stored))
	res.Body.Close()
	require.Less(t, res.StatusCode, 300)
	body(t, fmt.Sprintf("%s/v1/revisions/%d/wait?timeout=30s", c.url(), stored.Number))
}
