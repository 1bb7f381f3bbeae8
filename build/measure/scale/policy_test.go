// Package scale measures the parts beside the hot path at the sizes they must bear: a
// policy of as many rules as there may be, a control plane with a thousand proxies, the
// simulator, and a real Envoy whose policy changes. `make bench-scale` runs it.
//
// Its invariant: what is measured is the compiled command line and filter that users
// run, from outside.
package scale

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

var (
	sluice = filepath.Join(buildtest.Root(), "build", "out", "sluice")
	filter = filepath.Join(buildtest.Root(), "build", "out", "sluice.wasm")
)

// policyOf is a policy of so many rules, each for a path of its own, as short as they
// come: policy.MaxRules of them stay below policy.MaxBytes. The limit tells one revision
// from another.
func policyOf(rules, limit int) []byte {
	type rule map[string]any
	var list []rule
	for i := range rules {
		list = append(list, rule{
			"name": fmt.Sprint("r", i), "match": rule{"paths": []string{fmt.Sprintf("/v%d/*", i)}},
			"key": []string{"client_ip"}, "limits": []string{fmt.Sprint(limit, "/1s")}, "capacity": 64,
		})
	}
	text, err := json.Marshal(map[string]any{"version": 1, "rules": list})
	if err != nil {
		panic(err)
	}
	return text
}

// file writes a file of this test and returns its path.
func file(tb testing.TB, name string, content []byte) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	require.NoError(tb, os.WriteFile(path, content, 0o600))
	return path
}

// run runs the command line to its end.
func run(tb testing.TB, args ...string) (out []byte, maxMiB float64) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), sluice, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(tb, err, "make build; %s", &errs)
	return out, float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024
}

// What is measured is a policy, and the largest one there may be.
func TestPolicies(t *testing.T) {
	text := policyOf(policy.MaxRules, 1_000)
	require.Less(t, len(text), policy.MaxBytes)
	n, err := policy.ParseJSON(text)
	require.NoError(t, err)
	p, problems := policy.Read(n)
	require.Empty(t, problems)
	require.Len(t, p.Rules, policy.MaxRules)
}

// BenchmarkValidate is `sluice validate` of the largest policy.
func BenchmarkValidate(b *testing.B) {
	largest, most := file(b, "largest.yaml", policyOf(policy.MaxRules, 10)), 0.
	for b.Loop() {
		_, mib := run(b, "validate", "-f", largest)
		most = max(most, mib)
	}
	b.ReportMetric(most, "MiB")
}

// BenchmarkConfigure is on_configure of the compiled filter with the largest policy, the
// first request of each rule, and a tick with all tables in use.
func BenchmarkConfigure(b *testing.B) {
	wasm, err := os.ReadFile(filter)
	require.NoError(b, err, "make build")
	var first, tick time.Duration
	for b.Loop() {
		b.StopTimer()
		host, err := sim.New(b.Context(),
			sim.Options{Wasm: wasm, VMID: "sluice", PluginName: "sluice", CacheDir: buildtest.CacheDir()})
		require.NoError(b, err)
		require.NoError(b, host.Configure(policyOf(1, 10)))
		b.StartTimer()
		require.NoError(b, host.ConfigureWorker(0, policyOf(policy.MaxRules, 10)))
		b.StopTimer()
		began := time.Now()
		for i := range policy.MaxRules {
			answer, err := host.Serve(0, &sim.Request{Path: fmt.Sprintf("/v%d/", i), ClientIP: "192.0.2.7"})
			require.NoError(b, err)
			require.Equal(b, 200, answer.Status)
		}
		first += time.Since(began) / policy.MaxRules
		began = time.Now()
		require.NoError(b, host.Tick(0))
		tick += time.Since(began)
		host.Close()
		b.StartTimer()
	}
	b.ReportMetric(first.Seconds()*1e6/float64(b.N), "µs/first-request")
	b.ReportMetric(tick.Seconds()*1e3/float64(b.N), "ms/tick")
}

// BenchmarkSimulate is 20,000 requests of 1,000 clients. The rate is without the
// simulator's start.
func BenchmarkSimulate(b *testing.B) {
	const requests = 20_000
	for _, rules := range []int{10, 1000} {
		var lines bytes.Buffer
		for i := range requests {
			fmt.Fprintf(&lines, `{"at_ms":%d,"path":"/v%d/orders","client_ip":"10.0.%d.%d"}`+"\n", 1_700_000_000_000+i,
				i*7%rules, i%1000/250, i%250)
		}
		policy, asked := file(b, "policy.yaml", policyOf(rules, 10)), file(b, "requests.jsonl", lines.Bytes())
		none := file(b, "none.jsonl", nil)
		for _, workers := range []string{"1", "4"} {
			b.Run(fmt.Sprintf("rules=%d/workers=%s", rules, workers), func(b *testing.B) {
				simulate := func(asked string) int {
					out, _ := run(b, "simulate", "-f", policy, "--workers", workers, "-r", asked)
					return bytes.Count(out, []byte("\n"))
				}
				simulate(none) // compiles the filter, which is kept
				began := time.Now()
				simulate(none)
				start := time.Since(began)
				for b.Loop() {
					require.Equal(b, requests, simulate(asked))
				}
				b.ReportMetric(requests/(b.Elapsed()/time.Duration(b.N)-start).Seconds(), "requests/s")
			})
		}
	}
}
