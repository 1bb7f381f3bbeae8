package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/sluice-ratelimit/sluice/build/machine"
)

// service is the rate limit service that a case measures beside the filter, and
// the Redis that it counts in.
type service struct {
	port             int // of its gRPC
	ratelimit, redis *child
}

// limitConfig is what it limits: a limit for each user that none reaches.
const limitConfig = `domain: bench
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 4000000000}
`

// startService starts both, confined to the cores of this program.
func (b *bench) startService(ctx context.Context) (*service, error) {
	ports, err := machine.FreePorts(4)
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
	s := &service{port: ports[0]}
	// Debian's package, unpacked: its libraries are beside it.
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(b.redis), "..", "lib", "*-linux-gnu"))
	if err != nil {
		return nil, err
	}
	redis := exec.CommandContext(ctx, b.redis, "--port", strconv.Itoa(ports[1]), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", b.dir)
	for _, at := range libraries {
		redis.Env = append(os.Environ(), "LD_LIBRARY_PATH="+at)
	}
	if s.redis, err = startChild(redis); err != nil {
		return nil, err
	}
	redisAt := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1]))
	ratelimit := exec.CommandContext(ctx, b.ratelimit)
	ratelimit.Env = append(os.Environ(), "USE_STATSD=false", "LOG_LEVEL=error", "BACKEND_TYPE=redis",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redisAt, "RUNTIME_ROOT="+b.dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+strconv.Itoa(ports[0]), "PORT="+strconv.Itoa(ports[2]), "DEBUG_PORT="+strconv.Itoa(ports[3]))
	err = waitFor(ctx, "redis", func() bool { return accepts(redisAt) }, s.redis)
	if err == nil {
		s.ratelimit, err = startChild(ratelimit)
	}
	if err == nil {
		err = waitFor(ctx, "ratelimit", func() bool { return healthy(ports[2]) }, s.ratelimit)
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *service) stop() {
	for _, c := range []*child{s.ratelimit, s.redis} {
		if c != nil {
			c.kill()
		}
	}
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
