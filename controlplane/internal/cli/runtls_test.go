package cli

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

func TestRunWithTLS(t *testing.T) {
	text, secret := buildtest.PEM(buildtest.Issue(nil, []string{"ci.test"}))
	cert, key := file(t, "cert.pem", text), file(t, "key.pem", secret)
	control := start(t, newServeCommand(), "--data", t.TempDir(), "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0",
		"--tls-cert", cert, "--tls-key", key, "--xds-client-ca", cert, "--http-client-ca", cert,
		"--access", file(t, "access", "certificate ci.test apply\n"))
	web, xds := control.find(t, `msg=serving http=(\S+)`), control.find(t, `xds=(\S+)`)
	apply := start(t, newApplyCommand(), "-f", file(t, "policy.yaml", "version: 1\nrules: [{name: all, limits: [0/1s]}]\n"),
		"--server", "https://"+web, "--ca", cert, "--cert", cert, "--cert-key", key)
	require.NoError(t, <-apply.done)

	const dead = "localhost:1," // is tried first, and the other's certificate is not for its name
	common := []string{"--xds", dead + xds, "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--wasm", needFilter(t)}
	trusted := start(t, newRunCommand(), append(common[:len(common):len(common)], "--xds-ca", cert, "--xds-cert", cert, "--xds-key", key, "--node", "ci.test")...)
	require.Equal(t, http.StatusTooManyRequests, statusOf(t, trusted.find(t, `msg=serving listen=(\S+)`)))
	stranger := start(t, newRunCommand(), append(common[:len(common):len(common)], "--xds-ca", cert, "--node", "stranger")...)
	stranger.find(t, `control plane is away.*certificate required|no policy from the control plane yet`)
	require.NoError(t, stranger.end(t))
	other := start(t, newRunCommand(), append(common[:len(common):len(common)], "--xds-ca", cert, "--xds-cert", cert, "--xds-key", key, "--node", "other")...)
	other.find(t, `control plane refuses this proxy.*reason="node id .*ci.test other.* into the file of serve --node-names`)
	require.NoError(t, other.end(t))
	require.NoError(t, trusted.end(t))
	require.NoError(t, control.end(t))
}
