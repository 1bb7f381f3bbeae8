package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-ratelimit/sluice/build/machine"
)

// mainThread returns the CPU time of a process's first thread, to the
// nanosecond.
func mainThread(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, pid))
	if err != nil {
		return 0, err
	}
	ran, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(ran, 10, 64)
	return time.Duration(ns), err
}

var memoryLine = regexp.MustCompile(`(?m)^(VmHWM|VmRSS):\s+(\d+) kB$`)

// memoryOf returns the resident memory of a process in MiB: now, and the most
// there was.
func memoryOf(pid int) (now, most float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for _, m := range memoryLine.FindAllSubmatch(text, -1) {
		kB, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read memory: %w", err)
		}
		if string(m[1]) == "VmHWM" {
			most = kB / 1024
		} else {
			now = kB / 1024
		}
	}
	return now, most, nil
}

// mostMiB is the most resident memory of a process that has ended.
func mostMiB(s *os.ProcessState) float64 {
	usage, ok := s.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return float64(usage.Maxrss) / 1024 // of kB
}

// ran is what a command took from start to end.
type ran struct {
	wall    time.Duration
	mostMiB float64
	output  string // standard output
}

// command runs the command line under test to its end.
func (b *bench) command(ctx context.Context, args ...string) (ran, error) {
	cmd := exec.CommandContext(ctx, b.sluice, args...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(b.dir, "cache"))
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return ran{}, fmt.Errorf("run sluice %s: %w: %.2000s", args[0], err, errs.String())
	}
	r := ran{wall: time.Since(began), output: out.String()}
	r.mostMiB = mostMiB(cmd.ProcessState)
	return r, nil
}

// file writes a file of this run and returns its path.
func (b *bench) file(name string, content []byte) (string, error) {
	path := filepath.Join(b.dir, name)
	return path, os.WriteFile(path, content, 0o600)
}

// server is one sluice serve.
type server struct {
	cmd       *exec.Cmd
	http, xds string
	data      string
	bench     *bench
}

// serve starts the control plane on addresses that are free now; start starts
// it again there.
func (b *bench) serve(ctx context.Context, data string) (*server, error) {
	s := &server{bench: b, data: filepath.Join(b.dir, data)}
	ports, err := machine.FreePorts(2)
	if err != nil {
		return nil, err
	}
	s.http, s.xds = fmt.Sprint("127.0.0.1:", ports[0]), fmt.Sprint("127.0.0.1:", ports[1])
	return s, s.start(ctx)
}

func (s *server) start(ctx context.Context) error {
	s.cmd = exec.CommandContext(ctx, s.bench.sluice, "serve", "--data", s.data, "--http", s.http, "--xds", s.xds, "--wasm", s.bench.wasm)
	log, err := os.OpenFile(s.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has it
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start serve: %w", err)
	}
	err = until(ctx, "serve to answer", func() bool {
		_, err := s.get(ctx, "/healthz")
		return err == nil
	})
	if err != nil {
		s.kill()
	}
	return err
}

// kill ends it as kill -9 does.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) get(ctx context.Context, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+path, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.500s", path, res.Status, body)
	}
	return string(body), err
}

// gauge reads a metric of the control plane that has no labels, -1 if there is none.
func (s *server) gauge(ctx context.Context, name string) float64 {
	page, err := s.get(ctx, "/metrics")
	if err != nil {
		return -1
	}
	_, after, found := strings.Cut(page, "\n"+name+" ")
	value, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if !found || err != nil {
		return -1
	}
	return n
}

// apply applies a policy with the command line and waits for all proxies.
func (s *server) apply(ctx context.Context, file string) (ran, error) {
	return s.bench.command(ctx, "apply", "-f", file, "--server", "http://"+s.http, "--wait", "2m")
}

// patience is how long anything may take before it is given up.
const patience = 2 * time.Minute

// until asks until it is answered with true.
func until(ctx context.Context, what string, ask func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
