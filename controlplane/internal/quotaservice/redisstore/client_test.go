package redisstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseURL(t *testing.T) {
	type is struct {
		form                   form
		tls                    bool
		hosts                  []string
		user, password, master string
		database               int
	}
	for _, c := range []struct {
		url  string
		want is
	}{
		{"redis://h", is{hosts: []string{"h:6379"}}},
		{"VALKEY://h:1/3", is{hosts: []string{"h:1"}, database: 3}},
		{"rediss://u:p%40%2F@[::1]:7/", is{tls: true, user: "u", password: "p@/", hosts: []string{"[::1]:7"}}},
		{"redis+sentinel://a,b:1/m", is{form: sentinel, hosts: []string{"a:26379", "b:1"}, master: "m"}},
		{"valkeys+sentinel://u@a/m/2", is{
			form: sentinel, tls: true, user: "u", hosts: []string{"a:26379"}, master: "m", database: 2,
		}},
		{"redis+cluster://a:1,[::2]:2,c", is{form: cluster, hosts: []string{"a:1", "[::2]:2", "c:6379"}}},
	} {
		a, err := parseURL(c.url)
		require.NoError(t, err, c.url)
		require.Equal(t, c.want, is{a.form, a.TLS, a.Hosts, a.User, a.Password, a.master, a.database}, c.url)
	}
}

// What is wrong is said, and no error shows what may be a password.
func TestParseURLErrors(t *testing.T) {
	for _, c := range []struct{ url, says string }{
		{"", "a quota store's URL is redis://HOST:PORT"},
		{"http://u:s3cr3t@h", "a quota store's URL is redis://HOST:PORT"},
		{"redis+://u:s3cr3t@h", "a quota store's URL is redis://HOST:PORT"},
		{"redis://u:s3cr3t%zz@h", "write them as %25"},
		{"redis://u:s3cr3t/x@h", "HOST:PORT"},
		{"redis://u:s3cr3t#x@h", "write # in a password as %23"},
		{"redis://u:s3cr3t@", "HOST:PORT"},
		{"redis://u:s3cr3t@h:0", "HOST:PORT"},
		{"redis://u:s3cr3t@h:70000", "HOST:PORT"},
		{"redis://u:s3cr3t@a,b", "several are redis+sentinel:// or redis+cluster://"},
		{"redis://u:s3cr3t@h/x", "the number of a database"},
		{"redis+cluster://u:s3cr3t@h/1", "a Cluster has one database"},
		{"redis+sentinel://u:s3cr3t@h", "takes the name that Sentinel has for the master"},
		{"redis://u:s3cr3t@h?passwrod=s3cr3t", "each of these once at most: ca, cert, key, prefix,"},
		{"redis://u:s3cr3t@h?prefix=a&prefix=b", "each of these once"},
		{"redis://u:s3cr3t@h?s3cr3t=%zz", "NAME=VALUE"},
		{"redis://u:s3cr3t@h?prefix={a}", "braces would put every key of a Cluster on one server"},
		{"redis://u:s3cr3t@h?ca=x", "ca, cert, key, server_name are for TLS: "},
	} {
		_, err := parseURL(c.url)
		require.ErrorContains(t, err, c.says, c.url)
		require.NotContains(t, err.Error(), "s3cr3t", c.url)
	}
}

func TestSecretFiles(t *testing.T) {
	a, err := parseURL("redis://u:s3cr3t@h")
	require.NoError(t, err)
	require.EqualError(t, a.readPassword("file"),
		"the quota store's password stands both in its URL and in a file: keep the file")
	a.Password = ""
	require.ErrorContains(t, a.readPassword("/none"), "read the store's password: ")
	require.ErrorContains(t, a.readPassword("/dev/null"), "not a regular file")
}

// Sentinels get the servers' user and password unless the URL names others.
func TestSentinelPasswords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("other\n"), 0o600))
	for _, c := range []struct{ query, user, password string }{
		{"", "u", "p"},
		{"?sentinel_user=v", "v", "p"},
		{"?sentinel_password_file=" + file, "", "other"},
		{"?sentinel_user=v&sentinel_password_file=" + file, "v", "other"},
	} {
		a, err := parseURL("rediss+sentinel://u:p@h/m/3" + c.query)
		require.NoError(t, err)
		o, err := a.option()
		require.NoError(t, err)
		require.Equal(t, [...]string{"u", "p", c.user, c.password, "m"},
			[...]string{o.Username, o.Password, o.Sentinel.Username, o.Sentinel.Password, o.Sentinel.MasterSet}, c.query)
		require.NotNil(t, o.Sentinel.TLSConfig)
		require.Equal(t, 3, o.SelectDB)
	}
}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		about about
		form  form
		says  string
	}{
		{about{
			"redis_version": "6.0.6", "maxmemory_policy": "noeviction", "maxmemory": "1", "redis_mode": "standalone",
		}, single, ""},
		{about{"redis_version": "7.2.4", "valkey_version": "7.2.4"}, sentinel, ""},
		{about{"redis_version": "strange"}, single, ""},
		{about{"redis_version": "6.2.0", "min_slaves_good_slaves": "1"}, single, ""},
		{about{"redis_version": "6.0.6", "min_slaves_good_slaves": "1"}, single,
			"is Redis 6.0.6, which heeds min-replicas-to-write in no script"},
		{about{"redis_version": "5.0.14"}, single, "is Redis 5.0.14: the quota store takes Redis 6.0, Valkey 7.2 or newer"},
		{about{"redis_version": "7.2.4", "valkey_version": "7.1.9"}, single, "is Valkey 7.1.9"},
		{about{"maxmemory_policy": "allkeys-lru", "maxmemory": "1"}, single, "set maxmemory-policy to noeviction"},
		{about{"maxmemory_policy": "allkeys-lru", "maxmemory": "0"}, single, ""},
		{about{"redis_mode": "cluster"}, single, "use redis+cluster://"},
		{about{"redis_mode": "sentinel"}, single, "is a Sentinel: use redis+sentinel://"},
		{about{"redis_mode": "standalone"}, cluster, "is no node of a Cluster"},
	} {
		err := c.about.fit(c.form)
		if c.says == "" {
			require.NoError(t, err, c.about)
		} else {
			require.ErrorContains(t, err, c.says)
		}
	}
}

// A message of a server says what to do, and quotes no command.
func TestRefusal(t *testing.T) {
	for _, c := range []struct{ message, says string }{
		{"LOADING Redis is loading the dataset in memory",
			"the quota store's server refused with LOADING: it is loading its data"},
		{"MOVED 3999 127.0.0.1:6381",
			"the quota store's server refused with MOVED: it is a node of a Cluster: use redis+cluster://"},
		{"unknown command 'EVALSHA', with args beginning with: 'key'", "the quota store's server refused: unknown command "},
		{"Error running script (call to f_68): @user_script:10: @user_script: 10: -OOM command not allowed",
			"the quota store's server refused with OOM: its memory is full: raise maxmemory"},
		{"Error running script (call to f_68): @user_script:1: WRONGTYPE Operation against a key",
			"the quota store's server refused with WRONGTYPE: something else is under a key of the store: " +
				"give it a prefix of its own"},
		{"odd\x1b[31m", "the quota store's server refused: odd·[31m"},
	} {
		require.EqualError(t, refusal(c.message), c.says)
	}
}
