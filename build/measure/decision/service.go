package decision

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// service is the rate limit service that a case measures beside the filter, and
// the Redis that it counts in.
type service struct {
	port             int    // of its gRPC
	redisAt          string // address
	ratelimit, redis *child.Child
}

// limitConfig is what it limits: a limit for each user that none reaches, and one for
// each client that some reach.
const limitConfig = `domain: bench
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 4000000000}
- key: client
  rate_limit: {unit: minute, requests_per_unit: 100}
`

// startService starts both on the cores of this program.
func (b *bench) startService(ctx context.Context) (s *service, err error) {
	for _, program := range []string{b.ratelimit, b.redis} {
		if _, err := os.Stat(program); err != nil {
			return nil, fmt.Errorf("a program is missing: `make bench` installs envoyproxy/ratelimit and Redis: %w", err)
		}
	}
	free, err := ports.Free(4)
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
	redisAt := net.JoinHostPort("127.0.0.1", strconv.Itoa(free[1]))
	s = &service{port: free[0], redisAt: redisAt}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	redis := exec.CommandContext(ctx, b.redis, "--port", strconv.Itoa(free[1]), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", b.dir)
	// Debian's package, unpacked: its libraries are beside it.
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(b.redis), "..", "lib", "*-linux-gnu"))
	for _, at := range libraries {
		redis.Env = append(os.Environ(), "LD_LIBRARY_PATH="+at)
	}
	if err == nil {
		s.redis, err = child.Start(redis)
	}
	if err == nil {
		err = s.redis.Until(ctx, "accept connections", func() bool {
			conn, err := net.Dial("tcp", redisAt)
			return err == nil && conn.Close() == nil
		})
	}
	if err != nil {
		return nil, err
	}
	ratelimit := exec.CommandContext(ctx, b.ratelimit)
	ratelimit.Env = append(os.Environ(), "USE_STATSD=false", "LOG_LEVEL=error", "BACKEND_TYPE=redis",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redisAt, "RUNTIME_ROOT="+b.dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+strconv.Itoa(free[0]), "PORT="+strconv.Itoa(free[2]), "DEBUG_PORT="+strconv.Itoa(free[3]))
	if s.ratelimit, err = child.Start(ratelimit); err != nil {
		return nil, err
	}
	return s, s.ratelimit.Until(ctx, "be healthy", healthy(fmt.Sprintf("http://127.0.0.1:%d/healthcheck", free[2])))
}

func healthy(url string) func() bool {
	return func() bool {
		response, err := http.Get(url) //nolint:gosec // of a child
		return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}
}

func (s *service) stop() {
	for _, c := range []*child.Child{s.ratelimit, s.redis} {
		if c != nil {
			_ = c.Kill() // its end, or that of this program, is all the same
		}
	}
}
