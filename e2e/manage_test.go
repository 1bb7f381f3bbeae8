package e2e

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// The control plane sends management requests over TLS if it trusts the proxy's
// certificate. Only the management listener answers them, also if the policy names no
// port.
func TestManagementOverTLS(t *testing.T) {
	t.Parallel()
	d := newest(t)
	cert, key := buildtest.Certificate(t)
	control := &controlPlane{data: filepath.Join(t.TempDir(), "data"), xds: freeAddress(t), http: freeAddress(t), flags: []string{"--manage-ca", cert}}
	control.start(t)
	t.Cleanup(func() { control.kill(t) })
	p := d.start(t, proxyOptions{node: "edge-1", xds: control.xds, manage: freeAddress(t), manageCert: cert, manageKey: key})
	control.awaitConnected(t, "edge-1")
	_, errs, exit := control.tryApply(t, perUser("3/"+far)+managed)
	require.Zero(t, exit, errs)
	require.Contains(t, errs, "manage: without port")

	r := control.counters(t, "inc", "--rule", "per-user", "--key", "alice", "--n", "2")
	require.Zero(t, r.Failed, "%v", r)
	require.EqualValues(t, 2, *r.Sum)
	require.Equal(t, 404, p.status(t, "/.sluice/counters/get?rule=per-user&key=alice", ":method", "POST", "authorization", bearer))
	text, errs, exit := sluice(t, "explain", "--server", control.url(), "--header", "x-user-id: alice", "--output", "json")
	require.Zero(t, exit, errs)
	require.True(t, json.Valid([]byte(text)))
	require.Contains(t, text, `"used": 2`)

	// Without the CA the request fails.
	control.kill(t)
	control.flags = nil
	control.start(t)
	control.awaitConnected(t, "edge-1")
	r = control.counters(t, "get", "--rule", "per-user", "--key", "alice")
	require.Equal(t, 1, r.Failed)
	require.Contains(t, r.Proxies[0].Error, "certificate")
}

// A request is a management request if its path is one after the proxy has normalised
// it, however it is written. It is answered only on the management port.
func TestHiddenManagementPaths(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		p := d.listen(t, proxyOptions{policy: "version: 1\nmanage: {path: /.sluice/, port: 1, token_sha256: " + tokenSHA256 + "}\nrules: [{name: all, limits: [1000/" + far + "]}]\n"})
		paths := map[string]int{
			"/.sluice/counters/stats":          404,
			"//.sluice/counters/stats":         404,
			"/x/../.sluice/counters/stats":     404,
			"/x/%2e%2e/.sluice/counters/stats": 404,
			"/%2esluice/counters/stats":        404,
			"/.sluice/%2e%2e/x":                200,
			"/.sluice/../x":                    200,
			"/.sluice":                         200,
			"/.sluice;a=1/counters/stats":      200,
			"/.SLUICE/counters/stats":          200,
			"/x/.sluice/counters/stats":        200,
			"/x?/.sluice/counters/stats":       200,
		}
		if p.envoy != nil { // Envoy treats "..;" as ".."
			paths["/.sluice/..;/x"], paths["/x/..;/.sluice/counters/stats"] = 200, 404
		}
		for path, want := range paths {
			status := p.statusOf(t, "POST "+path+" HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\nauthorization: "+bearer+"\r\n\r\n")
			require.Equal(t, want, status, path)
		}
	})
}
