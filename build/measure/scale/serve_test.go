package scale

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/build/xdstest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	proxies    = 1000 // that serve is measured with
	retryAfter = 50 * time.Millisecond
)

// server is one sluice serve.
type server struct {
	*child.Child
	http, xds, data string
}

func serve(tb testing.TB) *server {
	tb.Helper()
	free, err := ports.Free(2)
	require.NoError(tb, err)
	s := &server{data: tb.TempDir(), http: fmt.Sprint("127.0.0.1:", free[0]), xds: fmt.Sprint("127.0.0.1:", free[1])}
	s.start(tb)
	tb.Cleanup(func() { s.Kill() })
	return s
}

func (s *server) start(tb testing.TB) {
	tb.Helper()
	var err error
	s.Child, err = child.Start(exec.Command(sluice, "serve", "--data", s.data, "--http", s.http, "--xds", s.xds, "--wasm",
		filter))
	require.NoError(tb, err, "make build")
	require.NoError(tb, s.Until(tb.Context(), "answer", func() bool {
		_, err := get("http://" + s.http + "/metrics")
		return err == nil
	}))
}

// until waits until a gauge has that value.
func (s *server) until(tb testing.TB, gauge string, value int) {
	tb.Helper()
	require.NoError(tb, s.Until(tb.Context(), fmt.Sprint("say ", gauge, " ", value), func() bool {
		text, err := get("http://" + s.http + "/metrics")
		return err == nil && strings.Contains(text, fmt.Sprintf("\n%s %d\n", gauge, value))
	}))
}

func get(url string) (string, error) {
	response, err := http.Get(url)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(response.Body)
	return string(text), errors.Join(err, response.Body.Close())
}

// apply is the command line that applies files and waits for all proxies.
func (s *server) apply(files ...string) []string {
	args := []string{"apply", "--server", "http://" + s.http, "--wait", "2m"}
	for _, file := range files {
		args = append(args, "-f", file)
	}
	return args
}

// BenchmarkServe is a change of policy until 1,000 proxies have accepted it.
func BenchmarkServe(b *testing.B) {
	for _, rules := range []int{10, policy.MaxRules} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			changes(b, func(revision int) []string { return []string{file(b, "policy.yaml", policyOf(rules, revision))} })
		})
	}
}

// BenchmarkPolicies is a change of a thousand policies, each for one proxy, in one command until
// all have accepted it.
func BenchmarkPolicies(b *testing.B) {
	changes(b, func(revision int) (files []string) {
		for i := range proxies {
			files = append(files, file(b, fmt.Sprint("p", i, ".yaml"),
				fmt.Appendf(nil, "name: p%d\nproxies: {node: proxy-%04d}\nversion: 1\n"+
					"rules: [{name: r, key: [client_ip], limits: [%d/1s], capacity: 64}]\n", i, i, revision)))
		}
		return files
	})
}

// changes applies each revision's files. Then serve is killed, and all proxies come back at once.
func changes(b *testing.B, files func(revision int) []string) {
	s := serve(b)
	var acks atomic.Int64
	for i := range proxies {
		xdstest.Follow(b, []string{s.xds}, fmt.Sprintf("proxy-%04d", i), retryAfter, func(string) { acks.Add(1) })
	}
	s.until(b, "sluice_proxies_connected", proxies)
	revision := 0
	most := 0
	answers := time.Duration(0)
	back := time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		revision++
		args := s.apply(files(revision)...)
		b.StartTimer()
		run(b, args...)
		b.StopTimer()
		most = max(most, proctest.Memory(b, proctest.StatusOf(s.Pid()), proctest.Peak))
		s.Kill()
		began := time.Now()
		s.start(b)
		answers += time.Since(began)
		s.until(b, "sluice_proxies_connected", proxies)
		back += time.Since(began)
		s.until(b, "sluice_proxies_behind", 0)
		b.StartTimer()
	}
	b.ReportMetric(answers.Seconds()*1e3/float64(b.N), "ms/answers")
	b.ReportMetric(back.Seconds()*1e3/float64(b.N), "ms/back")
	b.ReportMetric(float64(most)/(1<<20), "MiB")
	b.ReportMetric(float64(acks.Load())/float64(b.N), "ACKs/op")
}

// BenchmarkChange is a change of the policy of a real Envoy with four workers, until its
// ACK. Meanwhile the admin interface, which the main thread alone answers, and a worker
// are asked without a pause: the longest wait is for how long they did nothing else.
func BenchmarkChange(b *testing.B) {
	binary, err := proc.Find()
	require.NoError(b, err)
	for _, rules := range []int{10, policy.MaxRules} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			s := serve(b)
			upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			b.Cleanup(upstream.Close)
			bootstrap, _ := run(b, "render", "envoy", "--xds", s.xds, "--node", "measured", "--listen", "127.0.0.1:0",
				"--upstream", upstream.Listener.Addr().String(), "--admin", "127.0.0.1:0", "--wasm", filter)
			e, err := proc.Start(b.Context(), proc.Options{Binary: binary, Bootstrap: bootstrap, Concurrency: 4})
			require.NoError(b, err)
			b.Cleanup(func() { _ = e.Kill() })
			require.NoError(b, e.WaitReady(b.Context()))
			address, err := e.Listener(b.Context(), "ingress")
			require.NoError(b, err)
			apply := func(revision int) { run(b, s.apply(file(b, "policy.yaml", policyOf(rules, revision)))...) }
			apply(1) // from no policy at all
			revision := 1
			blocked := time.Duration(0)
			held := time.Duration(0)
			for b.Loop() {
				revision++
				main := longest(func() error { _, err := e.Get(b.Context(), "/ready"); return err })
				worker := longest(func() error { _, err := get("http://" + address + "/none"); return err })
				apply(revision)
				b.StopTimer()
				time.Sleep(time.Second) // the ACK comes from the main thread: the workers are told behind it
				blocked, held = blocked+main(), held+worker()
				b.StartTimer()
			}
			b.ReportMetric(blocked.Seconds()*1e3/float64(b.N), "ms/main-thread-blocked")
			b.ReportMetric(held.Seconds()*1e3/float64(b.N), "ms/request-held")
			rss, err := e.RSS()
			require.NoError(b, err)
			b.ReportMetric(float64(rss)/(1<<20), "MiB")
		})
	}
}

// longest asks without a pause. The function that it returns ends that and says the
// longest wait.
func longest(ask func() error) func() time.Duration {
	var stop atomic.Bool
	waited := make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for !stop.Load() {
			asked := time.Now()
			if ask() == nil {
				most = max(most, time.Since(asked))
			}
		}
		waited <- most
	}()
	return func() time.Duration {
		stop.Store(true)
		return <-waited
	}
}
