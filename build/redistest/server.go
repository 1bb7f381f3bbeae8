package redistest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
)

// Server is one running server.
type Server struct {
	Binary Binary
	Port   int

	t        testing.TB
	dir      string
	args     []string
	password string
	tls      *Certificates
	process  *process
}

// process is one life of a server.
type process struct {
	cmd  *exec.Cmd
	out  output
	done chan struct{}
}

// output collects what a server prints while others read it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
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

// StartTLS starts a server that takes TLS alone, and wants the password.
func StartTLS(t testing.TB, b Binary, password string) *Server {
	t.Helper()
	s := newServer(t, b)
	s.password, s.tls = password, newCertificates(t, s.dir)
	s.args = append(s.args, "--port", "0", "--tls-port", strconv.Itoa(s.Port), "--tls-cert-file", s.tls.Server,
		"--tls-key-file", s.tls.ServerKey, "--tls-ca-cert-file", s.tls.CA, "--tls-auth-clients", "optional", "--requirepass", password)
	s.Restart()
	return s
}

func newServer(t testing.TB, b Binary) *Server {
	t.Helper()
	free, err := ports.Free(1)
	require.NoError(t, err)
	s := &Server{Binary: b, Port: free[0], t: t, dir: t.TempDir()}
	s.args = []string{"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no"}
	t.Cleanup(func() { s.Kill() })
	return s
}

// Restart starts the server again, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	p := &process{cmd: command(s.t, s.Binary.Path, s.args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	go p.run(started)
	require.NoError(s.t, <-started)
	s.process = p
	eventually(s.t, "start a server: "+strings.Join(s.args, " "), func() bool {
		select {
		case <-p.done:
			require.FailNow(s.t, "the server ended: "+p.out.String())
		default:
		}
		_, err := s.try("PING")
		return err == nil
	})
}

// run waits for the process on a thread of its own: the kernel ends the child when
// the thread that started it ends.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait()
		close(p.done)
	}
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill() {
	if s.process != nil {
		s.Signal(syscall.SIGKILL)
		<-s.process.done
	}
}

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (s *Server) Signal(signal os.Signal) {
	if err := s.process.cmd.Process.Signal(signal); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(s.t, err)
	}
}

// Log is what the server has printed in this life.
func (s *Server) Log() string { return s.process.out.String() }

// Addr is where the server listens.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// Certificates are the files of a server with TLS.
func (s *Server) Certificates() *Certificates { return s.tls }

// Do sends a command on a connection of its own and returns the answer as text.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	answer, err := s.try(args...)
	require.NoError(s.t, err, strings.Join(args, " "))
	return answer
}

// config writes the server a file, for those that keep their state in it.
func (s *Server) config(lines ...string) {
	file := filepath.Join(s.dir, "server.conf")
	require.NoError(s.t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	s.args = append([]string{file}, s.args...)
}

// Running reports whether the server lives.
func (s *Server) Running() bool {
	select {
	case <-s.process.done:
		return false
	default:
		return true
	}
}
