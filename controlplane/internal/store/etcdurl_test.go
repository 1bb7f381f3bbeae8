package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
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
		"etcd://":                             "HOST:PORT",
		"etcd://a:2379,b":                     "HOST:PORT",
		"etcd://a:0":                          "HOST:PORT",
		"etcd://a:2379#x":                     "a store's URL is etcd://HOST:PORT",
		"etcd://joe:hunter2@a:1":              "holds no password",
		"etcd://joe:hunter2%@a:1":             "a store's URL is etcd://HOST:PORT",
		"etcd://joe@a:1":                      "a user and a password",
		"etcd://a:1/?password_file=" + secret: "a user and a password",
		"etcd://joe@a:1/?password_file=/no":   "read etcd's password",
		"etcd://a:1/?ca=/ca.pem":              "etcds://",
		"etcds://a:1/?ca=" + secret:           "holds no certificate",
		"etcds://a:1/?cert=/no":               "read the certificate for etcd",
		"etcd://a:1/?prefix=x":                "once at most: ca, cert, key, password_file, server_name",
	} {
		_, _, err := address(at)
		require.ErrorContains(t, err, want, at)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

// A client's certificate that was renewed is taken at the next handshake.
func TestRenewedCertificate(t *testing.T) {
	cert, key := buildtest.Certificate(t)
	c, _, err := address("etcds://a:1/?cert=" + cert + "&key=" + key)
	require.NoError(t, err)
	first, err := c.TLS.GetClientCertificate(nil)
	require.NoError(t, err)
	newer, newKey := buildtest.Certificate(t)
	require.NoError(t, os.Rename(newer, cert))
	_, err = c.TLS.GetClientCertificate(nil)
	require.ErrorContains(t, err, "read the certificate for etcd", "half of it is renewed")
	require.NoError(t, os.Rename(newKey, key))
	second, err := c.TLS.GetClientCertificate(nil)
	require.NoError(t, err)
	require.NotEqual(t, first.Certificate, second.Certificate)
}
