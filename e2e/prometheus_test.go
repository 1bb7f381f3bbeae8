package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/redistest"
)

// prometheus is a running Prometheus.
type prometheus struct{ address string }

const prometheusConfig = `
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}
rule_files: [%s]
scrape_configs:
- {job_name: envoy, metrics_path: /stats/prometheus, static_configs: [{targets: ['%s']}]}
- {job_name: sluice, static_configs: [{targets: ['%s', '%s']}]}
`

// startPrometheus starts a Prometheus with these rules that scrapes an Envoy, serve and
// a quota service.
func startPrometheus(t *testing.T, rules string, p *proxy, c *controlPlane, q *quotaService) *prometheus {
	t.Helper()
	path := prometheusBinary(t, "prometheus")
	s := &prometheus{freeAddress(t)}
	log := &output{}
	config := fmt.Sprintf(prometheusConfig, file(t, "rules.yaml", rules), strings.TrimPrefix(p.admin, "http://"), c.http, q.http)
	cmd := exec.CommandContext(t.Context(), path, "--config.file="+file(t, "prometheus.yaml", config),
		"--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+s.address)
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", log)
		}
	})
	eventually(t, 20*time.Second, "Prometheus to scrape", func() bool {
		res, err := http.Get("http://" + s.address + "/-/ready")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK && s.query(t, "sum(up)") == "3"
	})
	return s
}

func prometheusBinary(t *testing.T, name string) string {
	t.Helper()
	path := os.Getenv("SLUICE_PROMETHEUS")
	if path == "" {
		path = filepath.Join(buildtest.Root(), "build/out/prometheus/usr/bin/prometheus")
	}
	path, err := filepath.EvalSymlinks(path)
	require.NoError(t, err, "there is no Prometheus: run `make servers`, or set SLUICE_PROMETHEUS to the path of one")
	return filepath.Join(filepath.Dir(path), name)
}

// get decodes the data of an answer.
func (s *prometheus) get(t *testing.T, path string, query url.Values, into any) {
	t.Helper()
	res, err := http.Get("http://" + s.address + "/api/v1/" + path + "?" + query.Encode())
	require.NoError(t, err)
	defer res.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	require.NoError(t, json.NewDecoder(res.Body).Decode(&answer))
	require.Equal(t, "success", answer.Status, "%s: %s", query, answer.Error)
}

// query returns the first value of an instant query that is a number, or "".
func (s *prometheus) query(t *testing.T, query string) string {
	t.Helper()
	var data struct{ Result []struct{ Value [2]any } }
	s.get(t, "query", url.Values{"query": {query}}, &data)
	for _, r := range data.Result {
		if value := r.Value[1].(string); value != "NaN" {
			return value
		}
	}
	return ""
}

// fired reports whether the alert fires or has ever done so.
func (s *prometheus) fired(t *testing.T, alert string) bool {
	t.Helper()
	return s.query(t, `count_over_time(ALERTS{alertstate="firing",alertname="`+alert+`"}[1h])`) != ""
}

// panicking is the filter with a fault: it panics where it reads a header named so.
var panicking = buildtest.Fault{
	Name: "a header panics", File: "filter/internal/host/proxy.go",
	Old: "func (p *proxy) Header(name string) (string, bool) {\n",
	New: "func (p *proxy) Header(name string) (string, bool) {\n\tif name == \"x-panic\" {\n\t\tpanic(\"planted\")\n\t}\n",
}

const alertPolicy = `version: 1
quota: {timeout: 1s}
rules:
- {name: all, match: {paths: [/all]}, scope: cluster, on_unavailable: allow, lease: off, key: [{header: x-user-id}], limits: [1000000/` + far + `], capacity: 16}
- {name: busy, match: {paths: [/busy]}, key: [{header: x-user-id}], limits: [10/` + far + `], capacity: 16}
- {name: small, match: {paths: [/small]}, key: [{header: x-user-id}], limits: [9/` + far + `], capacity: 1, on_full: deny}
- {name: tiny, match: {paths: [/tiny]}, key: [{header: x-user-id}], limits: [1/` + far + `], capacity: 1}
- {name: panic, match: {paths: [/panic]}, key: [{header: x-panic}], limits: [9/` + far + `], on_error: allow, capacity: 16}
` + managed

var minutes = regexp.MustCompile(`(for: )?\b([0-9]+)m\b`)

// shortened are the rules with less than a second in place of each minute. The filter
// writes its metrics once a second, so increases are of longer times than faults.
func shortened(rules string) string {
	return minutes.ReplaceAllStringFunc(rules, func(text string) string {
		m := minutes.FindStringSubmatch(text)
		n, _ := strconv.Atoi(m[2])
		if m[1] != "" {
			return fmt.Sprint(m[1], 100*n, "ms")
		}
		return fmt.Sprint(600*n, "ms")
	})
}

// Every query of the dashboard and of the alerts returns data. Each alert fires when
// its fault is made, and not before.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	rules, errs, exit := sluice(t, "render", "prometheus-rules")
	require.Zero(t, exit, errs)
	checked, err := exec.CommandContext(t.Context(), prometheusBinary(t, "promtool"), "check", "rules", file(t, "rules.yaml", rules)).CombinedOutput()
	require.NoError(t, err, "%s", checked)

	store := redistest.Start(t, redistest.Redis(t)[0])
	c, q := startControlPlane(t), startQuota(t, "redis://"+store.Addr())
	wasm := filepath.Join(t.TempDir(), "panicking.wasm")
	require.NoError(t, os.WriteFile(wasm, buildtest.Plant(t, panicking), 0o600))
	p := newest(t).start(t, proxyOptions{node: "edge", xds: c.xds, quota: q.address, wasm: wasm, workers: 2})
	c.awaitConnected(t, "edge")
	c.apply(t, alertPolicy, "--wasm", wasm)
	s := startPrometheus(t, shortened(rules), p, c, q)

	users := 0
	send := func(path, user string) func() { return func() { p.status(t, path, "x-user-id", user) } }
	invent := func(path string) func() { return func() { users++; send(path, fmt.Sprint("user-", users))() } }
	seen := map[string]bool{}
	for _, fault := range []struct {
		name   string
		alerts []string
		do     func() // once
		again  func() // until the alerts fire
	}{
		{"a client is denied", []string{"SluiceDenialShare"}, func() {}, send("/busy", "alice")},
		{"keys without room", []string{"SluiceTableFull", "SluiceTableNearlyFull"}, func() {}, invent("/small")},
		{"keys without a record", []string{"SluiceFloorDenials"}, func() {}, invent("/tiny")},
		{"a panic", []string{"SluicePanics"}, send("/panic", "bob"), func() {}},
		{"a filter that is not there", []string{"SluiceRevisionRefused", "SluiceProxiesBehind"}, func() {
			_, _, exit := c.tryApply(t, alertPolicy+"# changed\n", "--wasm", wasm+".none")
			require.Equal(t, 1, exit)
		}, func() {}},
		{"no quota service", []string{"SluiceQuotaServiceSilent"}, q.kill, send("/all", "alice")},
		{"no store", []string{"SluiceQuotaStoreSilent"}, func() { q.start(t); store.Kill() }, send("/all", "alice")},
	} {
		send("/all", "alice")()
		send("/busy", fault.name)()
		for _, alert := range fault.alerts {
			require.False(t, s.fired(t, alert), "%s before %s", alert, fault.name)
			seen[alert] = true
		}
		fault.do()
		for _, alert := range fault.alerts {
			eventually(t, 20*time.Second, alert+" to fire for "+fault.name, func() bool { fault.again(); return s.fired(t, alert) })
		}
	}
	s.requireRules(t, seen)
	p.operate(t, "stats", "") // begins what has counted nothing
	s.requireDashboard(t)
}

// requireRules requires Prometheus to have these alerts alone, and no trouble with them.
func (s *prometheus) requireRules(t *testing.T, want map[string]bool) {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	s.get(t, "rules", nil, &data)
	got := map[string]bool{}
	for _, r := range data.Groups[0].Rules {
		got[r.Name] = true
		require.Equal(t, "ok", r.Health, "%s: %s", r.Name, r.LastError)
	}
	require.Equal(t, want, got)
}

// requireDashboard requires data for every query of the dashboard.
func (s *prometheus) requireDashboard(t *testing.T) {
	t.Helper()
	text, errs, exit := sluice(t, "render", "grafana")
	require.Zero(t, exit, errs)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &dashboard))
	variables := strings.NewReplacer("$__rate_interval", "1h", "$rule", ".*")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expr := variables.Replace(target.Expr)
			eventually(t, 10*time.Second, panel.Title+": data for "+expr, func() bool { return s.query(t, expr) != "" })
		}
	}
	var names []string
	s.get(t, "label/rule/values", url.Values{"match[]": {"rate_limit_memory_usage_bytes"}}, &names)
	require.Contains(t, names, "busy")
}
