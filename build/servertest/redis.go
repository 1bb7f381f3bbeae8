package servertest

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
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
	s.args = append([]string{"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "",
		"--appendonly", "no"}, args...)
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
		InitAddress: []string{s.Addr()}, Password: s.password, ForceSingleClient: true, DisableCache: true,
		DisableRetry: true, AlwaysRESP2: true,
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

const (
	masters = 3
	slots   = 16384
	// patient is after how many milliseconds of silence a master is replaced, until
	// FailOver: never on a busy machine. failover is the same after it.
	patient, failover = "10000", "1000"
)

// Cluster is three masters; the replica of each follows them in Servers.
type Cluster struct{ Servers []*RedisServer }

// StartCluster starts a Cluster, and returns when all of it says that it is well. Its
// servers know each other from their files: meeting takes them seconds.
func StartCluster(t testing.TB, b Binary) *Cluster {
	t.Helper()
	c := &Cluster{}
	bus := free(t, 2*masters)
	for i := range 2 * masters {
		s := newRedis(t, b)
		s.args = append(s.args, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus[i]), "--cluster-node-timeout",
			patient,
			"--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
		c.Servers = append(c.Servers, s)
	}
	for i, s := range c.Servers {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, "nodes.conf"), []byte(c.nodes(i, bus)), 0o600))
		s.Restart()
	}
	for _, s := range c.Servers[masters:] {
		s.inSync()
	}
	for _, s := range c.Servers {
		s.until("say that its Cluster is well", func() bool {
			return strings.Contains(s.Do("CLUSTER", "INFO"), "cluster_state:ok")
		})
	}
	return c
}

// nodes is the file in which one of the servers keeps who the others are.
func (c *Cluster) nodes(self int, bus []int) string {
	id := func(i int) string { return fmt.Sprintf("%040x", i+1) }
	var b strings.Builder
	for i, s := range c.Servers {
		role := "master"
		master := "-"
		owns := fmt.Sprintf(" %d-%d", i*slots/masters, (i+1)*slots/masters-1)
		if i >= masters {
			role = "slave"
			master = id(i - masters)
			owns = ""
		}
		if i == self {
			role = "myself," + role
		}
		shard := "" // a master with its replicas, which Redis 7.0 does not know
		if s.Binary.Name == "Valkey" {
			shard = ",,shard-id=" + id(i%masters)
		}
		fmt.Fprintf(&b, "%s %s@%d%s %s %s 0 0 %d connected%s\n", id(i), s.Addr(), bus[i], shard, role, master, i%masters+1,
			owns)
	}
	fmt.Fprintf(&b, "vars currentEpoch %d lastVoteEpoch 0\n", masters)
	return b.String()
}

// FailOver has the Cluster replace a master that is silent for a second.
func (c *Cluster) FailOver() {
	for _, s := range c.Servers {
		s.Do("CONFIG", "SET", "cluster-node-timeout", failover)
	}
}

// BeginMove begins to move a slot from one master to another.
func (c *Cluster) BeginMove(slot, from, to int) {
	source, target := c.Servers[from], c.Servers[to]
	number := strconv.Itoa(slot)
	require.Equal(source.t, "OK", target.Do("CLUSTER", "SETSLOT", number, "IMPORTING", source.Do("CLUSTER", "MYID")))
	require.Equal(source.t, "OK", source.Do("CLUSTER", "SETSLOT", number, "MIGRATING", target.Do("CLUSTER", "MYID")))
}

// Move moves a slot with its keys from one master to another.
func (c *Cluster) Move(slot, from, to int) {
	c.BeginMove(slot, from, to)
	source, target := c.Servers[from], c.Servers[to]
	number := strconv.Itoa(slot)
	for _, key := range strings.Fields(source.Do("CLUSTER", "GETKEYSINSLOT", number, "10")) {
		require.Equal(source.t, "OK", source.Do("MIGRATE", "127.0.0.1", strconv.Itoa(target.Port), key, "0", "10000"))
	}
	for _, s := range []*RedisServer{target, source} {
		require.Equal(source.t, "OK", s.Do("CLUSTER", "SETSLOT", number, "NODE", target.Do("CLUSTER", "MYID")))
	}
}

// inSync waits until the replica has what its master has.
func (s *RedisServer) inSync() {
	s.until("be in sync", func() bool {
		return strings.Contains(s.Do("INFO", "replication"), "master_link_status:up")
	})
}

// URL names all servers.
func (c *Cluster) URL() string { return "redis+cluster://" + addresses(c.Servers) }

// Watched is a master with a replica and three Sentinels.
type Watched struct{ Master, Replica *RedisServer }

// SentinelName is what the Sentinels call the master.
const SentinelName = "quota"

// StartSentinel starts a master, its replica and three Sentinels that watch them. The
// servers want the password; the Sentinels want none.
func StartSentinel(t testing.TB, b Binary, password string) (w Watched, url string) {
	t.Helper()
	auth := []string{"--requirepass", password, "--masterauth", password, "--repl-diskless-sync-delay", "0"}
	start := func(args ...string) *RedisServer {
		s := newRedis(t, b)
		s.password = password
		s.args = append(append(s.args, auth...), args...)
		s.Restart()
		return s
	}
	w.Master = start()
	w.Replica = start("--replicaof", "127.0.0.1", strconv.Itoa(w.Master.Port))
	w.Replica.inSync()
	var all []*RedisServer
	for range 3 {
		s := newRedis(t, b)
		s.args = []string{"--sentinel", "--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.dir}
		config := filepath.Join(s.dir, "server.conf") // in which it keeps its state
		require.NoError(t, os.WriteFile(config,
			fmt.Appendf(nil, "sentinel monitor %[1]s 127.0.0.1 %[2]d 2\nsentinel auth-pass %[1]s %[3]s\n"+
				"sentinel down-after-milliseconds %[1]s %[4]s\nsentinel failover-timeout %[1]s 3000\n", SentinelName, w.Master.Port,
				password, failover), 0o600))
		s.args = append([]string{config}, s.args...)
		s.Restart()
		all = append(all, s)
	}
	for _, s := range all {
		s.until("know the other Sentinels and the replica", func() bool {
			return strings.Contains(s.Do("INFO", "sentinel"), "slaves=1,sentinels=3")
		})
	}
	return w, "redis+sentinel://" + addresses(all) + "/" + SentinelName
}
