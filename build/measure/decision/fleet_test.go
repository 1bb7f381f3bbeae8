//go:build linux

package decision

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"fortio.org/fortio/periodic"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// site says what runs: Envoys that are alike, with a listener for each side.
type site struct {
	sides           []side
	envoys, workers int
	direct          bool   // Envoy itself answers what is let through, no upstream
	limiter         string // keys of descriptors that the rate limit service is asked for; "" = none runs
	program         string // path of the rate limit service; "" = envoyproxy/ratelimit
	quota           bool   // a quota service runs, on the Redis of the other
}

// side is a listener, and what stands before its router: JSON objects of filters, each
// followed by a comma.
type side struct{ name, filter string }

// fleet is a running site.
type fleet struct {
	*bench
	envoys   []*proc.Process
	services []*child.Child
	redis    *servertest.RedisServer
	limiter  int    // port of the rate limit service
	quota    string // URL of the quota service; "" = none
}

// run starts a site for the time of a test.
func (b *bench) run(t testing.TB, s site) *fleet {
	f, clusters := &fleet{bench: b}, ""
	if s.limiter != "" {
		f.redis = servertest.StartRedis(t, servertest.Redis(t))
		f.limiter = f.startLimiter(t, cmp.Or(s.program, b.ratelimit))
		clusters = fmt.Sprintf(serviceCluster, "ratelimit", f.limiter)
	}
	if s.quota {
		clusters += fmt.Sprintf(serviceCluster, "sluice_quota", f.startQuota(t))
	}
	for range s.envoys {
		f.envoys = append(f.envoys, b.startEnvoy(t, b.bootstrap(s, clusters), s.workers))
	}
	cores := b.one
	if s.workers > 1 {
		cores = b.cores // workers race on more than one core only
	}
	for _, p := range f.envoys {
		require.NoError(t, p.WaitReady(t.Context()))
		pin(t, p.Pid(), cores...)
	}
	return f
}

// startEnvoy starts one that may use all cores: until it serves, it compiles modules.
func (b *bench) startEnvoy(t testing.TB, bootstrap string, workers int) *proc.Process {
	p, err := proc.Start(t.Context(), proc.Options{Bootstrap: []byte(bootstrap), Concurrency: workers, LogLevel: "error"})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Log())
		}
		_ = p.Kill()
	})
	pin(t, p.Pid(), b.cores...)
	return p
}

// startService starts a program on the cores of this one, and waits until it is healthy.
func (f *fleet) startService(t testing.TB, url string, cmd *exec.Cmd, environment ...string) {
	cmd.Env = append(os.Environ(), environment...)
	c, err := child.Start(cmd)
	require.NoError(t, err, "make bench builds and fetches what it takes")
	t.Cleanup(func() { _ = c.Kill() })
	f.services = append(f.services, c)
	require.NoError(t, c.Until(t.Context(), "be healthy", func() bool {
		response, err := http.Get(url)
		return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}))
}

// limitConfig is that of the rate limit service: limits for each user that none reaches, for each
// client one that some reach, and one that all are over.
const limitConfig = `domain: bench
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 4000000000}}
- {key: path, rate_limit: {unit: day, requests_per_unit: 4000000000}}
- {key: plan, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
- {key: tenant, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
- {key: client, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: banned, rate_limit: {unit: day, requests_per_unit: 0}}
`

// startLimiter starts the rate limit service and returns the port of its gRPC.
func (f *fleet) startLimiter(t testing.TB, program string) int {
	free, err := ports.Free(3)
	require.NoError(t, err)
	root := t.TempDir()
	dir := filepath.Join(root, "ratelimit", "config")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(limitConfig), 0o600))
	f.startService(t, fmt.Sprintf("http://127.0.0.1:%d/healthcheck", free[1]),
		exec.CommandContext(t.Context(), program),
		"USE_STATSD=false", "LOG_LEVEL=error", "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+f.redis.Addr(),
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+strconv.Itoa(free[0]), "PORT="+strconv.Itoa(free[1]), "DEBUG_PORT="+strconv.Itoa(free[2]))
	return free[0]
}

// startQuota starts `sluice quota` and returns the port of its gRPC.
func (f *fleet) startQuota(t testing.TB) int {
	free, err := ports.Free(2)
	require.NoError(t, err)
	f.quota = fmt.Sprint("http://127.0.0.1:", free[1])
	f.startService(t, f.quota+"/healthz",
		exec.CommandContext(t.Context(), f.sluice, "quota", "--listen", fmt.Sprint("127.0.0.1:", free[0]),
			"--http", fmt.Sprint("127.0.0.1:", free[1]), "--quota-store", "redis://"+f.redis.Addr()), "GOMAXPROCS=1")
	return free[0]
}

// dial connects clients to a listener of every Envoy. They ask for a path, "" = the usual
// one, and send n keys in turn.
func (f *fleet) dial(t testing.TB, name, path string, n int) *clients {
	all := &clients{}
	for _, p := range f.envoys {
		address, err := p.Listener(t.Context(), name)
		require.NoError(t, err)
		all.dial(t, address, path, n)
	}
	return all
}

// turn is what one turn of one side took.
type turn struct {
	outcome
	envoy, service, redis float64 // µs of CPU for a request: of all Envoys, of all services
	asks                  float64 // of the quota service, for a request
}

func (t turn) total() float64 { return t.envoy + t.service + t.redis }

// settle is how long what a turn leaves to a quota service counts for the turn.
const settle = 1200 * time.Millisecond

// turn loads the listener that clients are connected to.
func (f *fleet) turn(t testing.TB, load *clients, o periodic.RunnerOptions) turn {
	before, asked := f.used(t), f.asks(t)
	got := turn{outcome: load.run(t, o)}
	if f.quota != "" {
		time.Sleep(settle)
	}
	n := float64(max(got.admitted+got.denied, 1))
	after := f.used(t)
	for i, figure := range []*float64{&got.envoy, &got.service, &got.redis} {
		*figure = float64((after[i] - before[i]).Nanoseconds()) / 1e3 / n
	}
	got.asks = (f.asks(t) - asked) / n
	return got
}

// used is the processor time so far: of all Envoys, of all services, of Redis.
func (f *fleet) used(t testing.TB) (times [3]time.Duration) {
	add := func(i int, c *child.Child) {
		used, err := c.CPU()
		require.NoError(t, err)
		times[i] += used
	}
	for _, p := range f.envoys {
		add(0, p.Child)
	}
	for _, c := range f.services {
		add(1, c)
	}
	if f.redis != nil {
		add(2, f.redis.Child)
	}
	return times
}

var asksLine = regexp.MustCompile(`(?m)^sluice_quota_asks_total\{.*\} (\S+)$`)

// asks is how many asks the quota service has answered.
func (f *fleet) asks(t testing.TB) (n float64) {
	if f.quota == "" {
		return 0
	}
	response, err := http.Get(f.quota + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	found := asksLine.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found, "the quota service says nothing of asks")
	for _, m := range found {
		value, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		n += value
	}
	return n
}
