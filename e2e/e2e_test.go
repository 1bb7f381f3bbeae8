// Package e2e is a suite of scenarios that run on two kinds of proxy: the simulator,
// as `sluice run`, and real Envoys.
//
// Its invariant: nothing is replaced by a mock. The policy goes from a file by
// `sluice apply` through `sluice serve` to the proxy, the filter is the compiled one,
// and a scenario sees what a client on a socket sees.
//
// A scenario gets its proxy by one of these, the cheapest first:
//
//	siteOf(t, d)        a control plane and a proxy that all scenarios of a driver share; apply
//	                    gives it a policy of the scenario's own domain
//	serve(t, d, policy) siteOf with that policy applied
//	site.listen         listeners of the scenario's own in the shared proxy, by the site's policies
//	d.listen            a listener with a policy of its own, in an Envoy that listeners share
//	d.start             a proxy for this test alone; d.launch one that the test ends itself
//	control.proxy       a proxy of a control plane that the test has started by startControlPlane
//	newRateLimiter      no proxy, but sluice as the rate limit service that Envoys call
//	startCalled         two of these, and an Envoy with the stock rate limit filter
//
// each, everyProxy, eachEnvoy and everyEnvoy say on which drivers a scenario runs. Most scenarios
// are rows, a file of policies and requests in testdata: see rows. load sends many requests at
// once, steady a constant rate; gate is a network between proxies and a quota service that fails.
package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/wasm"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// workers is the number of worker threads of a proxy.
const workers = 4

// far is a window that does not end during a test.
const far = "366d"

const (
	allowed = http.StatusOK
	denied  = http.StatusTooManyRequests
)

// The token of management requests.
const (
	token       = "operator-token-of-the-tests"
	tokenSHA256 = "11371aff22562e1c8540b6417a2429007fbbdb4ae0ffda050503b3d77632e972"
	bearer      = "Bearer " + token
)

// managed is a policy's field that sets the management token to the tests' token.
const managed = "manage: {path: /.sluice/, token_sha256: " + tokenSHA256 + "}\n"

// oneRule returns a policy of one rule that limits each value of x-user-id.
func oneRule(fields string) string {
	return "version: 1\nrules: [{name: per-user, key: [{header: x-user-id}], " + fields + "}]\n" + managed
}

// perUser returns a policy that limits each value of x-user-id.
func perUser(limits string) string {
	return "version: 1\nrules: [{name: per-user, key: [{header: x-user-id}], limits: [" + limits + "]}]\n"
}

// user returns a function for load.send that sends requests of one user.
func user(name string) func(int) request {
	return func(int) request { return request{"/", "x-user-id", name} }
}

// built are the paths of what TestMain has compiled.
var built struct {
	dir    string
	sluice string // command line
	filter string
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built.dir = dir
	built.sluice = filepath.Join(dir, "sluice")
	cmd := exec.Command("go", "build", "-ldflags=-w", "-o", built.sluice, "./controlplane/cmd/sluice")
	cmd.Dir = buildtest.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "compile sluice: %v\n%s", err, out)
		return 1
	}
	built.filter = filepath.Join(dir, "sluice.wasm")
	if err := wasm.Compile(buildtest.Root(), built.filter); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() { _, _ = wasm.Filter(buildtest.Root(), "sluice_faults") }() // it is ready when a test asks for it
	defer stopSites()
	return m.Run()
}

// driver starts one kind of proxy.
type driver struct {
	name  string
	envoy string // path of its binary; empty: the simulator
}

// version is that of the driver's Envoy.
func (d driver) version() string { return strings.TrimPrefix(d.name, "envoy-") }

// envoys returns the newest Envoy that the environment names, or all of them, for scenarios in
// which Envoy's versions have differed or are most likely to: an Envoy compiles the filter for
// ten seconds of processor time. SLUICE_EVERY_ENVOY has each scenario run on all.
func envoys(t *testing.T, all bool) (list []driver) {
	paths, err := proc.All()
	require.NoError(t, err)
	if !all && os.Getenv("SLUICE_EVERY_ENVOY") == "" {
		paths = paths[len(paths)-1:]
	}
	for _, path := range paths {
		version, err := proc.Version(t.Context(), path)
		require.NoError(t, err)
		list = append(list, driver{name: "envoy-" + version, envoy: path})
	}
	return list
}

// newest returns the newest Envoy, for tests that are too long to run on each.
func newest(t *testing.T) driver {
	all := envoys(t, false)
	return all[len(all)-1]
}

// each runs a scenario on the simulator and on the newest Envoy, at the same time, everyProxy on
// the simulator and all Envoys, eachEnvoy and everyEnvoy without the simulator.
func each(t *testing.T, scenario func(t *testing.T, d driver)) {
	together(t, append([]driver{{name: "sim"}}, envoys(t, false)...), scenario)
}

func everyProxy(t *testing.T, scenario func(t *testing.T, d driver)) {
	together(t, append([]driver{{name: "sim"}}, envoys(t, true)...), scenario)
}

func eachEnvoy(t *testing.T, scenario func(t *testing.T, d driver)) {
	together(t, envoys(t, false), scenario)
}

func everyEnvoy(t *testing.T, scenario func(t *testing.T, d driver)) {
	together(t, envoys(t, true), scenario)
}

func together(t *testing.T, on []driver, scenario func(t *testing.T, d driver)) {
	atOnce(len(on), func(i int) {
		t.Run(on[i].name, func(t *testing.T) { scenario(t, on[i]) })
	})
}

// file writes text to a temporary file and returns its path.
func file(t *testing.T, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// read returns the text of a file.
func read(t *testing.T, elements ...string) string {
	text, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(text)
}

// replaced has another text in place of one that is there.
func replaced(t *testing.T, text, old, with string) string {
	require.Contains(t, text, old)
	return strings.ReplaceAll(text, old, with)
}

// decoded reads JSON.
func decoded[T any](t *testing.T, text string) (v T) {
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// atOnce does something n times at once.
func atOnce(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	free, err := ports.Free(1)
	require.NoError(t, err)
	return fmt.Sprint("127.0.0.1:", free[0])
}

// eventually waits until ok returns true: as long as that takes on an idle machine, and two minutes more,
// because this one may be busy.
func eventually(t *testing.T, onIdleMachine time.Duration, what string, ok func() bool) {
	longest := onIdleMachine + 2*time.Minute
	deadline := time.Now().Add(longest)
	for !ok() {
		require.Less(t, time.Now(), deadline, "waited %s for %s", longest, what)
		time.Sleep(20 * time.Millisecond)
	}
}

// start starts a program that ends with the test, and shows its log if the test fails.
func start(t *testing.T, cmd *exec.Cmd) *child.Child {
	c, err := child.Start(cmd)
	require.NoError(t, err)
	t.Cleanup(func() { end(t, c) })
	return c
}

// startGently is start of a program that ends what it has started, if it is asked to end.
func startGently(t *testing.T, cmd *exec.Cmd) *child.Child {
	c := start(t, cmd)
	t.Cleanup(func() {
		_ = c.Signal(syscall.SIGTERM)
		select {
		case <-c.Done():
		case <-time.After(20 * time.Second):
		}
	})
	return c
}

// end kills a program.
func end(t *testing.T, c *child.Child) {
	_ = c.Kill()
	if t.Failed() {
		log := c.Log()
		t.Logf("end of the log of process %d:\n%s", c.Pid(), log[max(0, len(log)-20_000):])
	}
}

// answered reports whether a URL is answered with 200.
func answered(url string) bool {
	res, err := http.Get(url)
	return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
}

// body returns what a URL is answered with, as browsers see it.
func body(t *testing.T, url string) string {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Accept", "text/html")
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(text)
}

// sluice runs a command of the command line to its end.
func sluice(t *testing.T, args ...string) (stdout, stderr string, exit int) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, built.sluice, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	require.NotNil(t, cmd.ProcessState, "run sluice %s", strings.Join(args, " "))
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// sluiceOK runs a command that has to succeed, and returns what it prints.
func sluiceOK(t *testing.T, args ...string) (stdout string) {
	stdout, stderr, exit := sluice(t, args...)
	require.Zero(t, exit, "%v: %s%s", args, stdout, stderr)
	return stdout
}

// sluiceRefuses runs a command that has to exit with 1 and to say this.
func sluiceRefuses(t *testing.T, says string, args ...string) {
	stdout, stderr, exit := sluice(t, args...)
	require.Equal(t, 1, exit, "%v: %s%s", args, stdout, stderr)
	require.Contains(t, stderr, says)
}

// upstream is the server behind every proxy. It sends the fields and the status that a
// request asks for in x-send and x-status, after x-wait, and says which encodings it accepts.
var upstream = sync.OnceValue(func() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wait, err := time.ParseDuration(r.Header.Get("x-wait")); err == nil {
			time.Sleep(wait)
		}
		w.Header().Set("x-upstream", "yes")
		for _, line := range r.Header.Values("x-send") {
			name, value, _ := strings.Cut(line, ":")
			w.Header().Add(name, strings.TrimSpace(value))
		}
		w.Header().Set("x-accepted", cmp.Or(r.Header.Get("accept-encoding"), "none"))
		if status, err := strconv.Atoi(r.Header.Get("x-status")); err == nil {
			w.WriteHeader(status)
		}
		_, _ = io.WriteString(w, cmp.Or(r.Header.Get("x-body"), "hello\n"))
	}))
})
