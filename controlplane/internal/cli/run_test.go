package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// needFilter builds the filter and returns its file.
func needFilter(t *testing.T) string {
	t.Helper()
	return buildtest.Filter(t)
}

// command runs a command in the background until stop.
type command struct {
	out  proctest.Log
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, cmd *cobra.Command, args ...string) *command {
	t.Helper()
	c := &command{done: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	c.stop = stop
	t.Cleanup(stop)
	cmd.SetArgs(args)
	cmd.SetOut(&c.out)
	cmd.SetErr(&c.out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	forEach(cmd, complete)
	go func() { c.done <- cmd.ExecuteContext(ctx) }()
	return c
}

// find waits for a line of output and returns what the pattern's group holds.
func (c *command) find(t *testing.T, pattern string) string {
	t.Helper()
	var found []string
	require.Eventually(t, func() bool {
		found = regexp.MustCompile(pattern).FindStringSubmatch(c.out.String())
		return found != nil
	}, time.Minute, 10*time.Millisecond, "%s", &c.out)
	return found[len(found)-1]
}

func (c *command) end(t *testing.T) error {
	t.Helper()
	c.stop()
	select {
	case err := <-c.done:
		return err
	case <-time.After(time.Minute):
		return errors.New("it does not end")
	}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func statusOf(t *testing.T, address string) int {
	t.Helper()
	response, err := http.Get("http://" + address)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, errors.Join(err, response.Body.Close()))
	return response.StatusCode
}

// A policy file is read again on a signal, if it is any good, and its policy is in force
// until the control plane has given one.
func TestRunFromBoth(t *testing.T) {
	hangups := make(chan os.Signal, 1) // or the signal would end the test
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	hangup := func() { require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP)) }

	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	later, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	xds := later.Addr().String()
	require.NoError(t, later.Close())
	const text = "version: 1\nrules: [{name: all, algorithm: fixed_window_per_key, limits: [%d/1h]}]\n"
	policy := file(t, "policy.yaml", fmt.Sprintf(text, 1))
	c := start(t, newRunCommand(), "-f", policy, "--xds", xds, "--node", "n", "--upstream", upstream.URL,
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--wasm", needFilter(t))
	address, admin := c.find(t, `msg=serving listen=(\S+)`), c.find(t, `admin=(\S+)`)
	statuses := []int{statusOf(t, address), statusOf(t, address), statusOf(t, admin+"/healthz")}
	require.Equal(t, []int{200, 429, 200}, statuses,
		"no control plane, and never without limits")
	bad := []byte("version: 1\nrules: [{name: all, limits: [0/0s], color: red}]\n")
	require.NoError(t, os.WriteFile(policy, bad, 0o600))
	hangup()
	c.find(t, `the policy before stays in force`)
	c.find(t, `policy.yaml:2:\d+: rules\[0\]\.limits`)
	c.find(t, `policy.yaml:2:\d+: rules\[0\]\.color`)
	require.Equal(t, http.StatusTooManyRequests, statusOf(t, address))
	require.NoError(t, os.WriteFile(policy, fmt.Appendf(nil, text, 2), 0o600))
	hangup()
	c.find(t, `policy in force.* file=`)
	require.Equal(t, []int{200, 429}, []int{statusOf(t, address), statusOf(t, address)})

	control := start(t, newServeCommand(), "--data", t.TempDir(), "--http", "127.0.0.1:0", "--xds", xds)
	web := control.find(t, `msg=serving http=(\S+)`)
	c.find(t, `msg=(subscribed)`)
	require.Equal(t, http.StatusTooManyRequests, statusOf(t, address), "it has no policy, so the file's stays")
	apply := start(t, newApplyCommand(), "-f", file(t, "given.yaml", fmt.Sprintf(text, 4)), "--server", "http://"+web)
	require.NoError(t, <-apply.done, "%s", &apply.out)
	require.Equal(t, []int{200, 200, 429}, []int{statusOf(t, address), statusOf(t, address), statusOf(t, address)})

	require.NoError(t, os.WriteFile(policy, fmt.Appendf(nil, text, 100), 0o600))
	hangup()
	c.find(t, `that of the control plane stays in force`)
	require.Equal(t, http.StatusTooManyRequests, statusOf(t, address))
	require.NoError(t, control.end(t))
	require.Equal(t, http.StatusTooManyRequests, statusOf(t, address), "what it gave outlives it")
	require.NoError(t, c.end(t))
}

func TestQuickstart(t *testing.T) {
	wasm := needFilter(t)
	c := start(t, newQuickstartCommand(), "--wasm", wasm)
	address := c.find(t, `curl -i .* http://(\S+)/api/orders`)
	// It prints what the README shows, but for the seconds that have passed.
	seconds := regexp.MustCompile(`t=\d+|Retry-After: \d+`)
	printed := seconds.ReplaceAllString(c.out.String(), "SECONDS")
	readme, err := os.ReadFile(filepath.Join(buildtest.Root(), "README.md"))
	require.NoError(t, err)
	_, shown, _ := strings.Cut(string(readme), "$ sluice quickstart\n")
	shown, _, found := strings.Cut(shown, "```\n")
	require.True(t, found)
	for line := range strings.Lines(seconds.ReplaceAllString(shown, "SECONDS")) {
		require.Contains(t, printed, line)
	}
	require.Contains(t, printed, "200 allowed  (no rate limit fields)")
	require.Contains(t, printed, " | sed s,10/minute,20/minute, | ", "it works without a checkout")
	require.Equal(t, http.StatusOK, statusOf(t, address))

	// Another one beside it finds other ports.
	other := start(t, newQuickstartCommand(), "--wasm", wasm)
	other.find(t, `(curl -i) `)
	require.NoError(t, other.end(t))
	require.NoError(t, c.end(t))
}

func TestQuickstartWithEnvoy(t *testing.T) {
	t.Parallel()
	binary, err := proc.Find()
	require.NoError(t, err)
	c := start(t, newQuickstartCommand(), "--wasm", needFilter(t), "--envoy", binary)
	c.find(t, `(curl -i) `)
	require.NoError(t, c.end(t))
	require.Equal(t, 2, strings.Count(c.out.String(), "429 denied"), "%s", &c.out)
	require.Equal(t, 7, strings.Count(c.out.String(), "200 allowed"), "%s", &c.out)
	require.Contains(t, c.out.String(), "10 of 14 were allowed.")
}

func TestRunWithTLS(t *testing.T) {
	text, secret := certtest.PEM(certtest.Issue(nil, []string{"ci.test"}))
	cert, key := file(t, "cert.pem", text), file(t, "key.pem", secret)
	control := start(t, newServeCommand(), "--data", t.TempDir(), "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0",
		"--tls-cert", cert, "--tls-key", key, "--xds-client-ca", cert, "--http-client-ca", cert,
		"--access", file(t, "access", "certificate ci.test apply\n"))
	web, xds := control.find(t, `msg=serving http=(\S+)`), control.find(t, `xds=(\S+)`)
	policy := file(t, "policy.yaml", "version: 1\nrules: [{name: all, limits: [0/1s]}]\n")
	apply := start(t, newApplyCommand(), "-f", policy,
		"--server", "https://"+web, "--ca", cert, "--cert", cert, "--cert-key", key)
	require.NoError(t, <-apply.done)

	const dead = "localhost:1," // is tried first, and the other's certificate is not for its name
	runs := func(flags ...string) *command {
		return start(t, newRunCommand(), append(flags, "--xds", dead+xds, "--xds-ca", cert, "--wasm", needFilter(t),
			"--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0")...)
	}
	trusted := runs("--xds-cert", cert, "--xds-key", key, "--node", "ci.test")
	require.Equal(t, http.StatusTooManyRequests, statusOf(t, trusted.find(t, `msg=serving listen=(\S+)`)))
	stranger := runs("--node", "stranger")
	stranger.find(t, `control plane unreachable.*certificate required|no policy from the control plane yet`)
	require.NoError(t, stranger.end(t))
	other := runs("--xds-cert", cert, "--xds-key", key, "--node", "other")
	const reason = `reason="node id .*ci.test other.* into the file of serve --node-names`
	other.find(t, "control plane rejected this proxy.*"+reason)
	require.NoError(t, other.end(t))
	require.NoError(t, trusted.end(t))
	require.NoError(t, control.end(t))
}

// A server that is stopped while it starts ends without an error, as later.
func TestStoppedWhileItStarts(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--data", t.TempDir(), "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0"},
		{"quota", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"},
	} {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		root := NewRootCommand()
		root.SetArgs(args)
		root.SetErr(io.Discard)
		require.NoError(t, root.ExecuteContext(ctx), args)
	}
}
