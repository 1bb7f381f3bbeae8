package servertest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

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
