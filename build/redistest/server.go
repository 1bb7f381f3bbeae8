package redistest

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// Server is one running server.
type Server struct {
	Binary Binary
	Port   int

	*child.Child // one life of it

	t        testing.TB
	dir      string
	args     []string
	password string
	tls      bool
}

// Start starts a server on a port of its own, with these arguments more, such as
// "--maxmemory", "2mb". It keeps nothing on disk.
func Start(t testing.TB, b Binary, args ...string) *Server {
	t.Helper()
	s := newServer(t, b)
	s.args = append(s.args, args...)
	s.Restart()
	return s
}

// StartTLS starts a server that takes TLS alone, with a certificate that vouches for
// itself, and wants the password.
func StartTLS(t testing.TB, b Binary, password, cert, key string) *Server {
	t.Helper()
	s := newServer(t, b)
	s.password, s.tls = password, true
	s.args = append(s.args, "--port", "0", "--tls-port", strconv.Itoa(s.Port), "--tls-cert-file", cert,
		"--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "optional", "--requirepass", password)
	s.Restart()
	return s
}

func newServer(t testing.TB, b Binary) *Server {
	t.Helper()
	free, err := ports.Free(1)
	require.NoError(t, err)
	s := &Server{Binary: b, Port: free[0], t: t, dir: t.TempDir()}
	s.args = []string{"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no"}
	t.Cleanup(func() {
		if s.Child != nil {
			s.Kill()
		}
	})
	return s
}

// Restart starts the server again, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	var err error
	s.Child, err = child.Start(command(s.t, s.Binary.path, s.args...))
	require.NoError(s.t, err)
	require.NoError(s.t, s.Until(s.t.Context(), "answer", func() bool {
		_, err := s.try("PING")
		return err == nil
	}), strings.Join(s.args, " "))
}

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (s *Server) Signal(signal syscall.Signal) { require.NoError(s.t, s.Child.Signal(signal)) }

// Kill ends the server as kill -9 does.
func (s *Server) Kill() { require.NoError(s.t, s.Child.Kill()) }

// Addr is where the server listens.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// Do sends a command on a connection of its own and returns the answer as text; the parts
// of an array stand on lines of their own.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	answer, err := s.try(args...)
	require.NoError(s.t, err, strings.Join(args, " "))
	return answer
}

func (s *Server) try(args ...string) (string, error) {
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

// config writes the server a file, for those that keep their state in it.
func (s *Server) config(lines ...string) {
	file := filepath.Join(s.dir, "server.conf")
	require.NoError(s.t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	s.args = append([]string{file}, s.args...)
}
