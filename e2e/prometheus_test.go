//go:build long

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/sluice-ratelimit/sluice/build/charttest"
	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// prometheus is a running Prometheus.
type prometheus struct{ address string }

const prometheusConfig = `
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 200ms}
rule_files: [%s]
scrape_configs:
- {job_name: envoy, metrics_path: /stats/prometheus, static_configs: [{targets: ['%s']}]}
- {job_name: sluice, static_configs: [{targets: ['%s', '%s']}]}
`

// startPrometheus starts a Prometheus with these rules that scrapes an Envoy, serve and
// a quota service.
func startPrometheus(t *testing.T, rules string, p *proxy, c *controlPlane, q *quotaService) *prometheus {
	path := prometheusBinary(t, "prometheus")
	s := &prometheus{freeAddress(t)}
	config := fmt.Sprintf(prometheusConfig, file(t, "rules.yaml", rules), strings.TrimPrefix(p.admin, "http://"), c.http,
		q.http)
	start(t, exec.Command(path, "--config.file="+file(t, "prometheus.yaml", config),
		"--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+s.address))
	eventually(t, 20*time.Second, "Prometheus to scrape", func() bool {
		return answered("http://"+s.address+"/-/ready") && s.query(t, "sum(up)") == "3"
	})
	return s
}

func promtool(t *testing.T, args ...string) {
	said, err := exec.CommandContext(t.Context(), prometheusBinary(t, "promtool"), args...).CombinedOutput()
	require.NoError(t, err, "%s", said)
}

func prometheusBinary(t *testing.T, name string) string {
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
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	require.NoError(t, json.Unmarshal([]byte(body(t, "http://"+s.address+"/api/v1/"+path+"?"+query.Encode())), &answer))
	require.Equal(t, "success", answer.Status, "%s: %s", query, answer.Error)
}

// query returns the first value of an instant query that is a number, or "".
func (s *prometheus) query(t *testing.T, query string) string {
	var data struct{ Result []struct{ Value [2]any } }
	s.get(t, "query", url.Values{"query": {query}}, &data)
	for _, r := range data.Result {
		if value := r.Value[1].(string); value != "NaN" {
			return value
		}
	}
	return ""
}

// fires reports whether the alert fires now.
func (s *prometheus) fires(t *testing.T, alert string) bool {
	return s.query(t, `ALERTS{alertstate="firing",alertname="`+alert+`"}`) != ""
}

// fired reports whether the alert fires or has ever done so.
func (s *prometheus) fired(t *testing.T, alert string) bool {
	return s.query(t, `count_over_time(ALERTS{alertstate="firing",alertname="`+alert+`"}[1h])`) != ""
}

const alertPolicy = `version: 1
name: edge
proxies: {node: edge}
quota: {timeout: 1s}
rules:
- {name: all, match: {paths: [/all]}, scope: cluster, on_unavailable: allow, lease: off,
   key: [{header: x-user-id}], limits: [1000000/` + far + `], capacity: 16}
- {name: busy, match: {paths: [/busy]}, key: [{header: x-user-id}], limits: [10/` + far + `], capacity: 16}
- {name: small, match: {paths: [/small]}, key: [{header: x-user-id}], limits: [9/5s], capacity: 1, on_full: deny}
- {name: tiny, match: {paths: [/tiny]}, key: [{header: x-user-id}], limits: [1/5s], capacity: 1}
- {name: tokens, match: {paths: [/tokens]}, limits: [1000000000/` + far + `], settle: {to: tokens}}
- {name: budget, match: {paths: [/budget]}, limits: [1000000000/` + far + `], block: 1h,
   settle: {to: price, prices: [{model: "*", input: 1, output: 1}]}}
` + managed

var minutes = regexp.MustCompile(`(for: )?\b([0-9]+)m\b`)

// shortened are the rules with less than a second in place of each minute. The filter
// writes its metrics once a second, so increases are of longer times than faults.
func shortened(rules string) string {
	return minutes.ReplaceAllStringFunc(rules, func(text string) string {
		m := minutes.FindStringSubmatch(text)
		n, _ := strconv.Atoi(m[2])
		if m[1] != "" {
			return fmt.Sprint(m[1], 200*n, "ms")
		}
		return fmt.Sprint(1000*n, "ms")
	})
}

// Each alert of true length fires in its time.
func TestAlertsInTheirTimes(t *testing.T) {
	t.Parallel()
	promtool(t, "test", "rules", filepath.Join(buildtest.Root(), "examples/testdata/alerts.yaml"))
}

// alertFault is a fault and the alerts that it fires.
type alertFault struct {
	name   string
	alerts []string
	do     func() // once
	again  func() // until the alerts fire
	mend   func()
}

// requireAlerts makes a fault, requires its alerts to fire, and mends it.
func (s *prometheus) requireAlerts(t *testing.T, fault alertFault) {
	for _, alert := range fault.alerts {
		require.False(t, s.fired(t, alert), "%s before %s", alert, fault.name)
	}
	fault.do()
	for _, alert := range fault.alerts {
		eventually(t, 20*time.Second, alert+" to fire for "+fault.name,
			func() bool { fault.again(); return s.fired(t, alert) })
	}
	fault.mend()
}

// alertRig is all that the alerts watch.
type alertRig struct {
	control *controlPlane
	quota   *quotaService
	store   *servertest.RedisServer
	proxy   *proxy
	wasm    string
	users   int // invented so far
}

// send returns a function that sends a request of a user.
func (r *alertRig) send(t *testing.T, path, user string) func() {
	return func() { r.proxy.status(t, path, "x-user-id", user) }
}

// invent returns a function that sends a request of a new user each time.
func (r *alertRig) invent(t *testing.T, path string) func() {
	return func() {
		r.users++
		r.send(t, path, fmt.Sprint("user-", r.users))()
	}
}

// faults are what happens to the proxy, and to its policies.
func (r *alertRig) faults(t *testing.T) []alertFault {
	nothing := func() {}
	// A VM is made anew at the next request of its worker: a new connection may get it.
	reconnect := func() { r.proxy.status(t, "/all", "x-user-id", "alice", "connection", "close") }
	clients := []func(){
		r.send(t, "/busy", "alice"), r.invent(t, "/small"), r.invent(t, "/tiny"), r.send(t, "/tokens", "alice"),
	}
	c := r.control
	return []alertFault{
		{"clients are denied, also by full tables; calls into Envoy fail; answers say no tokens", []string{
			"SluiceDenialShare", "SluiceTableFull", "SluiceTableNearlyFull", "SluiceFloorDenials", "SluiceErrors",
			"SluiceAnswersEstimated",
		}, nothing, func() {
			r.proxy.status(t, "/busy", "x-user-id", "bob", "x-fault", "reads-fail")
			for _, send := range clients {
				send()
			}
		}, nothing},
		{"a panic", []string{"SluicePanics"}, func() { r.proxy.status(t, "/", "x-fault", "panic") }, reconnect, nothing},
		{"a filter that is not there", []string{"SluiceRevisionRefused", "SluiceProxiesBehind"}, func() {
			sluiceRefuses(t, "", c.applying(t, alertPolicy+"# changed\n", "--wasm", r.wasm+".none")...)
		}, nothing, func() { c.apply(t, alertPolicy+"# mended\n", "--wasm", r.wasm) }},
		{"a canary that is refused", []string{"SluiceCanaryStalled"}, func() {
			sluiceRefuses(t, "", c.applying(t, alertPolicy+"# tried\n", "--canary", "10%", "--wasm", r.wasm+".none")...)
		}, nothing, func() { sluiceOK(t, "abort", "--policy", "edge", "--server", c.url()) }},
	}
}

// faultsOfServers are what happens to the servers, and to a proxy that no policy is for.
func (r *alertRig) faultsOfServers(t *testing.T) []alertFault {
	nothing := func() {}
	c := r.control
	var other *proxy
	yesterday := t.TempDir()
	return []alertFault{
		{"a proxy that no policy is for", []string{"SluiceProxiesWithoutPolicy"}, func() {
			other = driver{}.start(t, proxyOptions{node: "other", xds: c.xds, policy: alertPolicy})
		}, nothing, func() { other.kill() }},
		{"a store of yesterday", []string{"SluiceServeBehind"}, func() {
			c.kill(t)
			require.NoError(t, os.CopyFS(yesterday, os.DirFS(c.data)))
			c.start(t)
			c.awaitConnected(t, "edge")
			c.apply(t, alertPolicy+"# today\n", "--wasm", r.wasm)
			c.kill(t)
			require.NoError(t, errors.Join(os.RemoveAll(c.data), os.CopyFS(c.data, os.DirFS(yesterday))))
			c.start(t)
		}, nothing, func() { c.apply(t, alertPolicy+"# tomorrow\n", "--wasm", r.wasm) }},
		{"no quota service", []string{"SluiceQuotaServiceSilent"}, r.quota.kill, r.send(t, "/all", "alice"),
			func() { r.quota.start(t) }},
		{"no store, and nobody who asks", []string{"SluiceQuotaStoreSilent"}, r.store.Kill, nothing, r.store.Restart},
	}
}

// Every query of the dashboard and of the alerts returns data. Each alert fires when its
// fault is made, and ends when that is mended.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	alerts := filepath.Join(charttest.Dir(), "alerts", "sluice.yaml")
	promtool(t, "check", "rules", alerts)
	rules := read(t, alerts)

	store := servertest.StartRedis(t, servertest.Redis(t))
	c, q := startControlPlane(t), startQuota(t, "redis://"+store.Addr())
	wasm := buildtest.Filter(t, "sluice_faults")
	p := c.proxy(t, newest(t), proxyOptions{node: "edge", quota: q.address, wasm: wasm, workers: 2})
	c.apply(t, alertPolicy, "--wasm", wasm)
	s := startPrometheus(t, shortened(rules), p, c, q)

	r := &alertRig{control: c, quota: q, store: store, proxy: p, wasm: wasm}
	seen := map[string]bool{}
	for _, fault := range append(r.faults(t), r.faultsOfServers(t)...) {
		r.send(t, "/all", "alice")()
		r.send(t, "/busy", fault.name)()
		s.requireAlerts(t, fault)
		for _, alert := range fault.alerts {
			seen[alert] = true
		}
	}
	// This one fires at each start, too, so the store loses its state once no start is under way.
	const starting = "SluiceQuotaStarting"
	eventually(t, 20*time.Second, "all starts to end", func() bool { return !s.fires(t, starting) })
	store.Do("FLUSHALL")
	eventually(t, 20*time.Second, starting+" to fire for an emptied store", func() bool { return s.fires(t, starting) })
	seen[starting] = true
	for alert := range seen {
		eventually(t, 20*time.Second, alert+" to end", func() bool {
			r.send(t, "/all", "alice")()
			return !s.fires(t, alert)
		})
	}
	seen["SluiceServeCutOff"] = true // takes an etcd: see TestCutOff of the store and of the API
	s.requireRules(t, seen)
	p.operate(t, "stats", "")                                    // begins what has counted nothing
	p.status(t, "/tokens", "x-user-id", "alice", "x-wait", "3s") // holds its units while workers write
	s.requireDashboard(t)
}

// requireRules requires Prometheus to have these alerts alone, and no trouble with them.
func (s *prometheus) requireRules(t *testing.T, want map[string]bool) {
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
	dashboard := decoded[struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}](t, read(t, filepath.Join(charttest.Dir(), "dashboards", "sluice.json")))
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
