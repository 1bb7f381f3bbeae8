// Package servertest runs real servers for tests: Redis and Valkey, alone, as a Cluster and
// under Sentinel; etcd; and nginx.
//
// Its invariant: no server outlives the test that started it. They listen on
// loopback alone. No program may import it.
package servertest

import (
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// Server is one running server.
type Server struct {
	*child.Child // one life of it
	Port         int

	t       testing.TB
	path    string
	dir     string
	args    []string
	answers func() bool
}

// newServer is a server that does not run yet, with a port and a folder of its own.
func newServer(t testing.TB, path string, args ...string) *Server {
	t.Helper()
	s := &Server{Port: free(t, 1)[0], t: t, path: path, dir: t.TempDir(), args: args}
	t.Cleanup(func() {
		if s.Child != nil {
			s.Kill()
		}
	})
	return s
}

func free(t testing.TB, n int) []int {
	t.Helper()
	list, err := ports.Free(n)
	require.NoError(t, err)
	return list
}

// find takes the program that the variable names, or that build/fetch installs there.
func find(t testing.TB, variable, pattern string) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(here), "..", "out", pattern))
	path := cmp.Or(os.Getenv(variable), append([]string{""}, found...)[len(found)])
	_, err := os.Stat(path)
	require.NoError(t, err, "run `make servers` or, for an etcd, `build/fetch etcd`, or set %s to the path of one",
		variable)
	return path
}

// start starts the server, with the libraries that Debian's package has beside it.
func (s *Server) start() {
	s.t.Helper()
	cmd := exec.Command(s.path, s.args...) //nolint:noctx // the cleanup ends it
	libraries, _ := filepath.Glob(filepath.Join(filepath.Dir(s.path), "..", "lib", "*-linux-gnu"))
	if len(libraries) > 0 {
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	}
	var err error
	s.Child, err = child.Start(cmd)
	require.NoError(s.t, err)
}

// until waits for the server to do something.
func (s *Server) until(what string, ok func() bool) {
	s.t.Helper()
	require.NoError(s.t, s.Until(s.t.Context(), what, ok), strings.Join(s.args, " "))
}

// Restart starts the server again, with what it has kept, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.start()
	s.until("answer", s.answers)
}

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (s *Server) Signal(signal syscall.Signal) { require.NoError(s.t, s.Child.Signal(signal)) }

// Kill ends the server as kill -9 does.
func (s *Server) Kill() { require.NoError(s.t, s.Child.Kill()) }

// Addr is where the server listens for its clients.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// addresses are where servers listen.
func addresses[S interface{ Addr() string }](servers []S) string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return strings.Join(all, ",")
}

// Nginx runs an nginx with these directives of http, until the test ends, and returns
// its folder, from which their relative paths go. It listens at the address when Nginx
// returns.
func Nginx(t testing.TB, address, http string) (dir string) {
	t.Helper()
	s := newServer(t, find(t, "SLUICE_NGINX", "nginx/usr/sbin/nginx"))
	config := filepath.Join(s.dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, []byte(`
daemon off;
master_process off;
pid pid;
error_log stderr;
events {}
http {
  client_body_temp_path .; proxy_temp_path .; fastcgi_temp_path .; uwsgi_temp_path .; scgi_temp_path .;
`+http+`
}
`), 0o600))
	s.args = []string{"-p", s.dir, "-c", config, "-e", "stderr"}
	s.answers = func() bool {
		c, err := net.Dial("tcp", address) //nolint:noctx // Until is bounded
		return err == nil && c.Close() == nil
	}
	s.Restart()
	return s.dir
}
