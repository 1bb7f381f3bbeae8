package scale

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/build/ports"
)

// connected is the gauge of proxies that are connected.
const connected = "sluice_proxies_connected"

// server is one sluice serve.
type server struct {
	*machine.Child
	bench           *bench
	http, xds, data string
}

// serve starts the control plane on addresses that are free now; start starts it
// again there.
func (b *bench) serve(ctx context.Context, data string) (*server, error) {
	free, err := ports.Free(2)
	if err != nil {
		return nil, err
	}
	s := &server{
		bench: b, data: filepath.Join(b.dir, data),
		http: fmt.Sprint("127.0.0.1:", free[0]), xds: fmt.Sprint("127.0.0.1:", free[1]),
	}
	return s, s.start(ctx)
}

func (s *server) start(ctx context.Context) (err error) {
	s.Child, err = machine.Start(exec.CommandContext(ctx, s.bench.sluice, "serve", "--data", s.data, "--http", s.http, "--xds", s.xds, "--wasm", s.bench.wasm))
	if err != nil {
		return err
	}
	err = s.Until(ctx, "answer", func() bool { return s.gauge(ctx, connected) >= 0 })
	if err != nil {
		s.Kill()
	}
	return err
}

// get returns what is answered, whatever the status.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// gauge reads a metric without labels, -1 if there is none.
func (s *server) gauge(ctx context.Context, name string) float64 {
	text, err := get(ctx, http.DefaultClient, "http://"+s.http+"/metrics")
	if err != nil {
		return -1
	}
	_, after, found := strings.Cut(text, "\n"+name+" ")
	value, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if !found || err != nil {
		return -1
	}
	return n
}

// apply applies a policy with the command line and waits for all proxies.
func (s *server) apply(ctx context.Context, policy []byte) (machine.Ran, error) {
	file, err := s.bench.file("policy.yaml", policy)
	if err != nil {
		return machine.Ran{}, err
	}
	return s.bench.cli(ctx, "apply", "-f", file, "--server", "http://"+s.http, "--wait", "2m")
}

// proxies is how many proxies the control plane is measured with.
const proxies = 1000

// fleet measures serve with many proxies: a change of policy, and what happens when
// the control plane dies and all of them come back at once.
func (b *bench) fleet(ctx context.Context) error {
	if err := b.fleetOf(ctx, 10, "10 rules", 2); err != nil {
		return err
	}
	return b.fleetOf(ctx, maxRules, "10,000 rules", 0)
}

func (b *bench) fleetOf(ctx context.Context, rules int, name string, target float64) error {
	s, err := b.serve(ctx, fmt.Sprintf("data-%d", rules))
	if err != nil {
		return err
	}
	defer func() { s.Kill() }()
	f, err := newFleet(ctx, s.xds, proxies)
	if err != nil {
		return err
	}
	defer f.close()
	if err := s.until(ctx, connected, proxies); err != nil {
		return err
	}
	revision := uint64(0)
	return b.take(ctx, []column{
		{"apply to last ACK, " + name, "s", target},
		{"apply to its own end, " + name, "s", target},
		{"CPU of serve for it, " + name, "s", 0},
		{"most memory of serve since its start, " + name, "MiB", 0},
		{"a resource, " + name, "kB", 0},
		{"kill -9 to all connected again, " + name, "s", 0},
		{"CPU of serve for that, " + name, "s", 0},
		{"policies pushed again after that, " + name, "", 0},
	}, func() ([]float64, error) {
		revision++
		applied, err := s.applyTo(ctx, f, rules, revision)
		if err != nil {
			return nil, err
		}
		back, err := s.comeBack(ctx)
		return append(applied, back...), err
	})
}

// until waits until a gauge has that value.
func (s *server) until(ctx context.Context, gauge string, value float64) error {
	return s.Until(ctx, fmt.Sprint("say ", gauge, " ", value), func() bool { return s.gauge(ctx, gauge) == value })
}

// applyTo applies a new revision and waits for every proxy.
func (s *server) applyTo(ctx context.Context, f *fleet, rules int, revision uint64) ([]float64, error) {
	before, err := machine.CPUTime(s.Pid())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	applied := make(chan error, 1)
	var ran machine.Ran
	go func() {
		var err error
		ran, err = s.apply(ctx, policyOf(rules, int(revision)))
		applied <- err
	}()
	last, err := f.await(ctx, revision, proxies)
	if failed := <-applied; failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	after, err := machine.CPUTime(s.Pid())
	if err != nil {
		return nil, err
	}
	_, highest, err := machine.Memory(s.Pid())
	return []float64{
		last.at.Sub(began).Seconds(), ran.Wall.Seconds(), (after - before).Seconds(), highest, float64(last.bytes) / 1000,
	}, err
}

// comeBack kills serve and waits until a new one has all proxies again.
func (s *server) comeBack(ctx context.Context) ([]float64, error) {
	began := time.Now()
	s.Kill()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if err := s.until(ctx, connected, proxies); err != nil {
		return nil, err
	}
	took := time.Since(began)
	if err := s.until(ctx, "sluice_proxies_behind", 0); err != nil {
		return nil, err
	}
	used, err := machine.CPUTime(s.Pid())
	return []float64{took.Seconds(), used.Seconds(), s.gauge(ctx, "sluice_xds_pushes_total")}, err
}
