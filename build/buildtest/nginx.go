package buildtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Nginx runs an nginx with these directives of http, until the test ends, and returns
// its folder, from which their relative paths go. It listens at the address when Nginx
// returns.
func Nginx(t *testing.T, address, http string) (dir string) {
	t.Helper()
	binary := os.Getenv("SLUICE_NGINX")
	if binary == "" {
		binary = filepath.Join(Root(), "build", "out", "nginx", "usr", "sbin", "nginx")
	}
	_, err := exec.LookPath(binary)
	require.NoError(t, err, "make servers installs an nginx, or set SLUICE_NGINX to one")
	dir = t.TempDir()
	config := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
daemon off;
master_process off;
pid pid;
error_log stderr;
events {}
http {
  client_body_temp_path .; proxy_temp_path .; fastcgi_temp_path .; uwsgi_temp_path .; scgi_temp_path .;
%s
}
`, http), 0o600))
	cmd := exec.Command(binary, "-p", dir, "-c", config, "-e", "stderr")
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	})
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		return err == nil && c.Close() == nil
	}, time.Minute, 20*time.Millisecond)
	return dir
}
