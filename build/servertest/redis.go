package servertest

import (
	"context"
	"crypto/tls"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// Binary is a server's program.
type Binary struct {
	Name string // "Redis" or "Valkey"
	path string
}

// Redises are the servers that tests have to pass on.
func Redises(t testing.TB) []Binary {
	t.Helper()
	return []Binary{Redis(t), {"Valkey", find(t, "SLUICE_VALKEY", "valkey/valkey-server")}}
}

// Redis is the Redis server alone. It was built with TLS.
func Redis(t testing.TB) Binary {
	t.Helper()
	return Binary{"Redis", find(t, "SLUICE_REDIS", "redis/usr/bin/redis-server")}
}

// RedisServer is one Redis or Valkey.
type RedisServer struct {
	*Server

	Binary   Binary
	password string
	tls      bool
}

// StartRedis starts a server on a port of its own, with these arguments more, such as
// "--maxmemory", "2mb". It keeps nothing on disk.
func StartRedis(t testing.TB, b Binary, args ...string) *RedisServer {
	t.Helper()
	s := newRedis(t, b, args...)
	s.Restart()
	return s
}

// StartTLS starts a server that takes TLS alone, with a certificate that vouches for
// itself, and wants the password.
func StartTLS(t testing.TB, b Binary, password, cert, key string) *RedisServer {
	t.Helper()
	s := newRedis(t, b)
	s.password, s.tls = password, true
	s.args = append(s.args, "--port", "0", "--tls-port", strconv.Itoa(s.Port), "--tls-cert-file", cert,
		"--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "optional", "--requirepass", password)
	s.Restart()
	return s
}

func newRedis(t testing.TB, b Binary, args ...string) *RedisServer {
	t.Helper()
	s := &RedisServer{Server: newServer(t, b.path), Binary: b}
	s.args = append([]string{"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no"}, args...)
	s.answers = func() bool {
		_, err := s.try("PING")
		return err == nil
	}
	return s
}

// Do sends a command on a connection of its own and returns the answer as text; the parts
// of an array stand on lines of their own.
func (s *RedisServer) Do(args ...string) string {
	s.t.Helper()
	answer, err := s.try(args...)
	require.NoError(s.t, err, strings.Join(args, " "))
	return answer
}

func (s *RedisServer) try(args ...string) (string, error) {
	o := rueidis.ClientOption{
		InitAddress: []string{s.Addr()}, Password: s.password, ForceSingleClient: true, DisableCache: true, DisableRetry: true, AlwaysRESP2: true,
		PipelineMultiplex: -1,
	}
	if s.tls {
		o.TLSConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // on loopback, before it is known to be up
	}
	client, err := rueidis.NewClient(o)
	if err != nil {
		return "", err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	answer, err := client.Do(ctx, client.B().Arbitrary(args...).Build()).ToAny()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	if list, ok := answer.([]any); ok {
		var lines []string
		for _, part := range list {
			lines = append(lines, fmt.Sprint(part))
		}
		return strings.Join(lines, "\n"), err
	}
	return fmt.Sprint(answer), err
}
