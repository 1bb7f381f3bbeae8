package redisstore_test

import (
	"bytes"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/storetest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

const (
	password = "s3cr3t/#?@:%&"
	mutual   = "a certificate where one is wanted"
)

func passwordFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// All ways to a server that wants TLS and a password, and the wrong ones.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	cert, key := certtest.Files(t)
	server := servertest.StartTLS(t, servertest.Redis(t), password, cert, key)
	server.Do("ACL", "SETUSER", "limiter", "on", ">"+password, "~sluice:*", "+@all")
	host, tls := server.Addr(), "?ca="+url.QueryEscape(cert)
	withCertificate := tls + "&cert=" + url.QueryEscape(cert) + "&key=" + url.QueryEscape(key)
	escaped := url.UserPassword("", password).String() + "@"
	right, wrong := passwordFile(t, password+"\n"), passwordFile(t, "s3cr3t-wrong")
	for _, c := range []struct{ name, url, file, says string }{
		{"password in the URL", "rediss://" + escaped + host + tls, "", ""},
		{"password in a file", "valkeys://" + host + "/" + tls, right, ""},
		{"a user", "rediss://limiter@" + host + "/0" + tls, right, ""},
		{"a user with a prefix of another", "rediss://limiter@" + host + tls + "&prefix=other:", right, ""},
		{"server_name", "rediss://" + host + tls + "&server_name=127.0.0.1", right, ""},
		{"wrong password", "rediss://" + host + tls, wrong, "WRONGPASS: user or password is wrong"},
		{"unknown user", "rediss://nobody@" + host + tls, right, "WRONGPASS: user or password is wrong"},
		{"no password", "rediss://" + host + tls, "", "NOAUTH: it wants a password"},
		{"unknown CA", "rediss://" + host, right, "certificate"},
		{"another name", "rediss://" + host + tls + "&server_name=example.org", right, "certificate"},
		{"no TLS", "redis://" + host, right, "the quota store"},
		{"a certificate without its key", "rediss://" + host + tls + "&cert=" + url.QueryEscape(cert), right,
			"read the certificate for the store"},
		{"a CA that is none", "rediss://" + host + "?ca=" + url.QueryEscape(right), right, "has no certificate in PEM"},
		{"a certificate", "rediss://" + host + withCertificate, right, ""},
		{mutual, "rediss://" + host + withCertificate, right, ""},
		{"no certificate where one is wanted", "rediss://" + host + tls, right, "the quota store"},
	} {
		if c.name == mutual {
			server.Do("CONFIG", "SET", "tls-auth-clients", "yes")
		}
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		store, err := try(t, redisstore.Options{URL: c.url, PasswordFile: c.file, Log: logger})
		require.NotContains(t, log.String(), "s3cr3t", c.name)
		if c.says != "" {
			require.ErrorContains(t, err, c.says, c.name)
			require.NotContains(t, err.Error(), "s3cr3t", c.name)
			continue
		}
		require.NoError(t, err, c.name)
		r := storetest.Swap(t, store, swapstore.Swap{Key: storetest.NewKey()})
		if strings.Contains(c.url, "other") {
			require.ErrorContains(t, r.Err, "NOPERM: the user may not do that")
		} else {
			require.Equal(t, swapstore.Read, r.Status, "%s: %v", c.name, r.Err)
		}
		require.NoError(t, store.Close())
	}
}

// A server that would drop values is refused; one that does not say is warned of.
func TestServersThatForget(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		server := servertest.StartRedis(t, b)
		const info = "ACL SETUSER default"
		for _, c := range []struct{ do, refuses, warns string }{
			{"CONFIG SET maxmemory-policy allkeys-lru", "", ""},
			{"CONFIG SET maxmemory 100mb", "set maxmemory-policy to noeviction (it is allkeys-lru), or maxmemory to 0", ""},
			{"CONFIG SET maxmemory-policy volatile-ttl", "it is volatile-ttl", ""},
			{info + " -info", "", "cannot check a server of the quota store: allow INFO"},
			{info + " +info", "it is volatile-ttl", ""},
			{"CONFIG SET maxmemory-policy noeviction", "", ""},
		} {
			server.Do(strings.Fields(c.do)...)
			var log bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			store, err := try(t, redisstore.Options{URL: "redis://" + server.Addr(), Log: logger})
			if c.refuses != "" {
				require.ErrorContains(t, err, c.refuses, c.do)
				continue
			}
			require.NoError(t, err, c.do)
			if c.warns == "" {
				require.Empty(t, log.String(), c.do)
			} else {
				require.Contains(t, log.String(), c.warns, c.do)
			}
			require.Equal(t, swapstore.Read, storetest.Swap(t, store, swapstore.Swap{Key: storetest.NewKey()}).Status)
			require.NoError(t, store.Close())
		}
	})
}

// Tenants with prefixes of their own do not see each other's values.
func TestPrefix(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, servertest.Redis(t))
	key := storetest.NewKey()
	for _, prefix := range []string{"", "?prefix=a:", "?prefix=b:"} {
		store := open(t, "redis://"+server.Addr()+prefix)
		w := storetest.Write(storetest.TimeOf(t, store), key, nil, storetest.NewValue(""))
		require.Equal(t, swapstore.Swapped, storetest.Swap(t, store, w).Status)
		n, err := store.Live(t.Context(), "domain", 1)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	keys := strings.Fields(server.Do("KEYS", "*"))
	require.Len(t, keys, 6)
	for _, key := range keys {
		require.Regexp(t, `^(sluice|a|b):([\w-]{22}|live:domain)$`, key)
		require.NotEqual(t, "-1", server.Do("PTTL", key), "%s expires", key)
	}
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"redis", "redis+cluster", "redis+sentinel"} {
		_, err := try(t, redisstore.Options{URL: scheme + "://u:s3cr3t@127.0.0.1:1/0"})
		require.ErrorContains(t, err, "connection refused", scheme)
		require.NotContains(t, err.Error(), "s3cr3t", scheme)
	}
}

// TestAUserWithFewRights: what the documentation says that a user needs is enough.
func TestAUserWithFewRights(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, b servertest.Binary) {
		server := servertest.StartRedis(t, b)
		rights := []string{"ACL", "SETUSER", "limiter", "on", ">" + "secret", "~sluice:*"}
		for command := range strings.FieldsSeq("eval evalsha time get set incrby zadd zremrangebyscore zcard pexpire info") {
			rights = append(rights, "+"+command)
		}
		server.Do(rights...)
		storetest.Conform(t, func() swapstore.Store {
			store, err := try(t, redisstore.Options{URL: "redis://limiter:secret@" + server.Addr()})
			require.NoError(t, err)
			return store
		})
	})
}
