package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

// peers are the rate limit service and the Redis that it counts in.
type peers struct {
	port           int // of the service's gRPC
	service, redis *child
}

// limitConfig is the service's: a limit for each user that none reaches.
const limitConfig = `domain: bench
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 4000000000}
`

// startPeers starts both, confined to the cores of this program.
func (b *bench) startPeers(ctx context.Context) (*peers, error) {
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "ratelimit", "config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(limitConfig), 0o600); err != nil {
		return nil, err
	}
	p := &peers{port: ports[0]}
	// Debian's package, unpacked: its libraries are beside it.
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(b.redis), "..", "lib", "*-linux-gnu"))
	if err != nil {
		return nil, err
	}
	redis := exec.CommandContext(ctx, b.redis, "--port", strconv.Itoa(ports[1]), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", b.dir)
	for _, at := range libraries {
		redis.Env = append(os.Environ(), "LD_LIBRARY_PATH="+at)
	}
	if p.redis, err = startChild(redis); err != nil {
		return nil, err
	}
	redisAt := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1]))
	service := exec.CommandContext(ctx, b.service)
	service.Env = append(os.Environ(), "USE_STATSD=false", "LOG_LEVEL=error", "BACKEND_TYPE=redis",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redisAt, "RUNTIME_ROOT="+b.dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+strconv.Itoa(ports[0]), "PORT="+strconv.Itoa(ports[2]), "DEBUG_PORT="+strconv.Itoa(ports[3]))
	err = waitFor(ctx, "redis", func() bool { return accepts(redisAt) }, p.redis)
	if err == nil {
		p.service, err = startChild(service)
	}
	if err == nil {
		err = waitFor(ctx, "ratelimit", func() bool { return healthy(ports[2]) }, p.service)
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *peers) stop() {
	for _, c := range []*child{p.service, p.redis} {
		if c != nil {
			c.kill()
		}
	}
}

// child is a process that does not outlive this one.
type child struct {
	cmd  *exec.Cmd
	out  bytes.Buffer // read after done
	done chan struct{}
	err  error // of Wait; read after done
}

func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr, cmd.WaitDelay = &c.out, &c.out, dieWithParent(), time.Second
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that started a child for the
		// end of its parent, so that thread waits with it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// waitFor asks until it is answered with true or the child has ended.
func waitFor(ctx context.Context, what string, ask func() bool, c *child) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for !ask() {
		select {
		case <-c.done:
			return fmt.Errorf("wait for %s: it ended: %w\n%s", what, errors.Join(c.err), c.out.String())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func accepts(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func healthy(port int) bool {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthcheck", port))
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// freePorts are some that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
