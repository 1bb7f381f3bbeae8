package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestURLs(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	for at, want := range map[string]struct {
		endpoints, root, user, password string
		tls                             bool
	}{
		"etcd://a:2379":                           {endpoints: "http://a:2379", root: "sluice/"},
		"etcd://a:2379,[::1]:2380/":               {endpoints: "http://a:2379 http://[::1]:2380", root: "sluice/"},
		"etcds://a:1/prod/eu/?server_name=etcd":   {endpoints: "https://a:1", root: "prod/eu/", tls: true},
		"etcd://joe@a:1/?password_file=" + secret: {endpoints: "http://a:1", root: "sluice/", user: "joe", password: "hunter2"},
	} {
		c, root, err := address(at)
		require.NoError(t, err, at)
		require.Equal(t, want.endpoints, strings.Join(c.Endpoints, " "))
		require.Equal(t, []any{want.root, want.user, want.password, want.tls}, []any{root, c.Username, c.Password, c.TLS != nil})
	}
	for at, want := range map[string]string{
		"http://a:2379":                       "a store's URL is etcd://HOST:PORT",
		"etcd://a":                            "HOST:PORT",
		"etcd://joe:hunter2@a:1":              "holds no password",
		"etcd://joe@a:1":                      "a user and a password",
		"etcd://a:1/?password_file=" + secret: "a user and a password",
		"etcd://joe@a:1/?password_file=/no":   "read the store's password",
		"etcd://a:1/?ca=/ca.pem":              "etcds://",
		"etcd://a:1/?prefix=x":                "once at most: ca, cert, key, password_file, server_name",
	} {
		_, _, err := address(at)
		require.ErrorContains(t, err, want, at)
		require.NotContains(t, err.Error(), "hunter2")
	}
}
