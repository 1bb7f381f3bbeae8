package browser

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

const (
	callersToken    = "the-token-of-somebody-who-looks-at-the-console"
	readersToken    = "the-token-of-somebody-who-may-change-nothing"
	managementToken = "the-token-that-opens-the-counters-of-proxies"
)

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// rig is serve and an Envoy in front of an upstream.
type rig struct {
	t         *testing.T
	dir       string
	http, xds string
	manage    int
	url       string // of the proxy
}

func newRig(t *testing.T) *rig {
	t.Helper()
	free, err := ports.Free(3)
	require.NoError(t, err)
	g := &rig{t: t, dir: t.TempDir(), manage: free[0], http: fmt.Sprint("127.0.0.1:", free[1]),
		xds: fmt.Sprint("127.0.0.1:", free[2])}
	g.serve()
	g.envoy()
	return g
}

func (g *rig) file(name, text string) string {
	g.t.Helper()
	path := filepath.Join(g.dir, name)
	require.NoError(g.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (g *rig) serve() {
	g.t.Helper()
	c, err := child.Start(exec.Command(program(g.t, "SLUICE_CLI"), "serve", "--data", filepath.Join(g.dir, "data"),
		"--http", g.http, "--xds", g.xds,
		"--access", g.file("access",
			"token ops admin "+digest(callersToken)+"\ntoken looker read "+digest(readersToken)+"\n"),
		"--manage-token-file", g.file("management", managementToken+"\n")))
	require.NoError(g.t, err)
	g.t.Cleanup(func() {
		_ = c.Kill()
		if g.t.Failed() {
			g.t.Log(c.Log())
		}
	})
	require.NoError(g.t, c.Until(g.t.Context(), "answer", func() bool {
		res, err := http.Get("http://" + g.http + "/healthz")
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}))
}

func (g *rig) envoy() {
	g.t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	g.t.Cleanup(upstream.Close)
	render := exec.Command(program(g.t, "SLUICE_CLI"), "render", "envoy", "--xds", g.xds, "--node", "edge-1",
		"-f", g.file("first.yaml", g.policy("1/1s")), "--wasm", program(g.t, "SLUICE_FILTER"),
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--manage", fmt.Sprintf("127.0.0.1:%d", g.manage),
		"--upstream", strings.TrimPrefix(upstream.URL, "http://"))
	var said bytes.Buffer
	render.Stderr = &said
	bootstrap, err := render.Output()
	require.NoError(g.t, err, said.String())
	binary, err := proc.Find()
	require.NoError(g.t, err)
	envoy, err := proc.Start(g.t.Context(),
		proc.Options{Binary: binary, Bootstrap: bootstrap, Concurrency: 2, LogLevel: "error"})
	require.NoError(g.t, err)
	g.t.Cleanup(func() { _ = envoy.Stop() })
	require.NoError(g.t, envoy.WaitReady(g.t.Context()), envoy.Log())
	address, err := envoy.Listener(g.t.Context(), "ingress")
	require.NoError(g.t, err)
	g.url = "http://" + address
}

// traffic sends some requests a second until the test ends.
func (g *rig) traffic() {
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(25 * time.Millisecond):
			}
			r, _ := http.NewRequest(http.MethodGet, g.url+"/orders", http.NoBody)
			r.Header.Set("X-User-Id", "user-"+strconv.Itoa(i*i%7))
			if res, err := http.DefaultClient.Do(r); err == nil {
				res.Body.Close()
			}
		}
	})
	g.t.Cleanup(func() { close(done); all.Wait() })
}

// apply applies a policy on the command line.
func (g *rig) apply(limit string) {
	g.t.Helper()
	cmd := exec.Command(program(g.t, "SLUICE_CLI"), "apply", "--server", "http://"+g.http, "--token-file",
		g.file("token", callersToken+"\n"),
		"-f", g.file("policy.yaml", g.policy(limit)))
	out, err := cmd.CombinedOutput()
	require.NoError(g.t, err, string(out))
}

// policy is the one that the test applies.
func (g *rig) policy(limit string) string {
	return fmt.Sprintf(`version: 1
domain: shop
manage: {path: /.sluice/, port: %d, token_sha256: %s}
rules:
  - name: per-user
    key: [{header: x-user-id}]
    limits: [%s]
  - name: everybody
    mode: shadow
    limits: [1/1s]
  - name: per-tenant
    key: [{header: x-tenant}]
    missing_key: skip
    limits: [2/1h]
    block: 1h
`, g.manage, digest(managementToken), limit)
}

// ask sends a request of a tenant, and returns the answer's status.
func (g *rig) ask(tenant string) int {
	g.t.Helper()
	r, err := http.NewRequest(http.MethodGet, g.url+"/orders", http.NoBody)
	require.NoError(g.t, err)
	r.Header.Set("X-Tenant", tenant)
	res, err := http.DefaultClient.Do(r)
	require.NoError(g.t, err)
	res.Body.Close()
	return res.StatusCode
}

func (b *tab) denied() (n float64) {
	n, _ = strconv.ParseFloat(strings.ReplaceAll(b.text(`[data-denied="per-user"]`), ",", ""), 64)
	return n
}

func TestConsole(t *testing.T) {
	g := newRig(t)
	b := open(t, "http://"+g.http)

	b.visit("/")
	b.await("h1", "Sign in")
	b.see("console-login")
	b.do(chromedp.SendKeys("#token", callersToken+"\r"))
	b.await("h1", "Proxies")
	b.await("tbody", "edge-1")
	b.await("#summary", "Nothing has been applied yet. Connected proxies: 1.")

	// What is applied shows up while one looks.
	g.apply("3/10s")
	b.await("#summary", "1 of 1 connected proxies run revision 1, the newest.")
	g.traffic()

	// Denials rise while one looks.
	b.do(chromedp.Click(`nav a[href="/console/rules"]`))
	b.await("h1", "Rules")
	require.Eventually(t, func() bool { return b.denied() > 0 }, time.Minute, 100*time.Millisecond, b.text("body"))
	first := b.denied()
	require.Eventually(t, func() bool { return b.denied() > first }, time.Minute, 100*time.Millisecond, b.text("body"))
	for range 10 { // some points for the chart
		before := b.denied()
		require.Eventually(t, func() bool { return b.denied() > before }, time.Minute, 100*time.Millisecond)
	}
	b.seesCharts()
	b.await("figure table caption", "Keys of per-user denied most")
	b.see("console-rules", "dark")

	b.freesAClient(g)

	// Change the policy and go back.
	g.apply("100/10s")
	b.visit("/console/")
	b.await("#summary", "1 of 1 connected proxies run revision 2, the newest.")
	b.see("console-proxies", "light")
	b.visit("/console/revisions")
	b.see("console-revisions")
	b.do(chromedp.Click(`a[href="/console/revisions/1?policy=default"]`))
	b.await("h1", "Revision 1")
	b.see("console-revision")
	b.do(chromedp.Click(`a[href="/console/revisions/1/rollback?policy=default"]`))
	b.await("h1", "Roll back to revision 1")
	b.await("main", "+    limits: [3/10s]")
	b.see("console-rollback", "dark")
	b.do(chromedp.Click("button.strong"))
	b.await("#summary", "1 of 1 connected proxies run revision 3, the newest.")

	b.do(chromedp.Click("header .who button"))
	b.await("h1", "Sign in")
	b.visit("/console/")
	b.await("h1", "Sign in")
	b.requireQuiet()
	b.freesNobodyAsAReader()
}

// seesCharts looks at the charts as people do: lines, the limit, values and times on the axes,
// and what the pointer shows.
func (b *tab) seesCharts() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		return run(b, chromedp.Evaluate[bool](`(s => s.length == 3 && s.slice(0, 2).every(
			c => c.querySelector("polyline.denied, polyline.shadow").getBBox().height > 0)
		)([...document.querySelectorAll("svg.chart")])`))
	}, time.Minute, 100*time.Millisecond, "the rules with traffic have lines")
	require.Contains(b.t, b.text("table tbody tr"), "3 per 10s")
	chart := func(selector string) string {
		return run(b, chromedp.Evaluate[string](
			`[...document.querySelectorAll("svg.chart")][1].querySelector("`+selector+`").textContent`))
	}
	require.Equal(b.t, "0", chart("text.value"))
	require.Regexp(b.t, `^\d\d:\d\d(:\d\d)?$`, chart("text.time"))
	require.Equal(b.t, "limit of each proxy: 1 per 1s", chart("text.limit"))
	b.seesValues("svg.chart", `^\d\d:\d\d:\d\d · allowed [\d.]+ · denied [\d.]+$`)
}

// freesAClient finds a tenant that is denied, as somebody does whom it calls, and frees it.
func (b *tab) freesAClient(g *rig) {
	b.t.Helper()
	for range 3 {
		g.ask("acme")
	}
	require.Equal(b.t, http.StatusTooManyRequests, g.ask("acme"))
	b.do(chromedp.Click(`nav a[href="/console/clients"]`))
	b.await("h1", "Clients")
	b.see("console-clients-search")
	b.do(chromedp.SendKeys("#header", "x-tenant: acme"), chromedp.Click("button.strong[data-find]"))
	b.await("#verdict", "Denied now by per-tenant")
	b.await("main", "2 of 2 per 1h")
	b.await("main", "blocked for ")
	b.see("console-clients", "light")
	b.do(chromedp.Click(`.found button[data-free="per-tenant"]`))
	b.await("main", "The client is freed.")
	b.await("#verdict", "No rule denies this client now")
	b.see("console-clients-freed")
	require.Equal(b.t, http.StatusOK, g.ask("acme"))
	token := g.file("token", callersToken+"\n")
	audit := exec.Command(program(b.t, "SLUICE_CLI"), "audit", "--server", "http://"+g.http, "--token-file", token)
	out, err := audit.CombinedOutput()
	require.NoError(b.t, err, string(out))
	require.Regexp(b.t, `token ops +.*counters reset`, string(out))
	require.NotContains(b.t, string(out), "acme")
}

// freesNobodyAsAReader finds a client with the role read, and sends the form for which there
// is no button.
func (b *tab) freesNobodyAsAReader() {
	b.t.Helper()
	b.do(chromedp.SendKeys("#token", readersToken+"\r"))
	b.await("h1", "Proxies")
	b.visit("/console/clients")
	b.do(chromedp.SendKeys("#header", "x-tenant: acme"), chromedp.Click("button[data-find]"))
	b.await("main", "To free a client takes the role admin: you have the role read.")
	b.await(".found", "1 of 2 per 1h")
	require.False(b.t, run(b, chromedp.Evaluate[bool](`!!document.querySelector("form[action*=free]")`)))
	answer := run(b, chromedp.Evaluate[string](`fetch("/console/clients/free", {
			method: "POST", headers: {Accept: "text/html"}, body: new URLSearchParams({
				csrf: document.querySelector("[name=csrf]").value, header: "x-tenant: acme", rule: "per-tenant",
			})}).then(r => r.text())`,
		func(p *runtime.EvaluateParams) { awaited := true; p.AwaitPromise = &awaited }))
	require.Contains(b.t, answer, "POST /v1/counters/reset needs the role admin: token looker has the role read")
	require.Contains(b.t, answer, "1 of 2 per 1h")
}
