// Package etcdtest runs real etcd members for tests.
//
// Its invariant: no member outlives the test that started it. They listen on loopback
// alone. No program may import it.
package etcdtest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// Member is one etcd.
type Member struct {
	*child.Child // one life of it
	Addr         string

	t      testing.TB
	path   string
	args   []string
	scheme string // of clients' URLs
	health string
}

// Cluster is its members. All of it is gone with the test.
type Cluster []*Member

// Start starts a cluster of n members, with these arguments more, and returns when each
// answers. With --cert-file among them it takes TLS alone. The program is the one that
// SLUICE_ETCD names, or that build/fetch etcd makes.
func Start(t testing.TB, n int, args ...string) Cluster {
	t.Helper()
	path := os.Getenv("SLUICE_ETCD")
	if path == "" {
		_, file, _, _ := runtime.Caller(0)
		found, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "..", "out", "etcd-*", "etcd"))
		require.NotEmpty(t, found, "no etcd: build/fetch etcd builds one, SLUICE_ETCD=PATH names another")
		path = found[len(found)-1]
	}
	free, err := ports.Free(3 * n)
	require.NoError(t, err)
	var c Cluster
	var peers []string
	scheme := "http"
	if slices.Contains(args, "--cert-file") {
		scheme = "https"
	}
	for i := range n {
		peers = append(peers, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, free[n+i]))
	}
	for i := range n {
		m := &Member{t: t, path: path, scheme: scheme, Addr: fmt.Sprint("127.0.0.1:", free[i]), health: fmt.Sprint("http://127.0.0.1:", free[2*n+i])}
		_, peer, _ := strings.Cut(peers[i], "=")
		m.args = append([]string{
			"--name", fmt.Sprint("m", i), "--data-dir", t.TempDir(), "--initial-cluster", strings.Join(peers, ","), "--log-level", "error",
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--listen-metrics-urls", m.health,
			"--listen-client-urls", scheme + "://" + m.Addr, "--advertise-client-urls", scheme + "://" + m.Addr,
		}, args...)
		t.Cleanup(func() {
			if m.Child != nil {
				m.Kill()
			}
		})
		m.start()
		c = append(c, m)
	}
	for _, m := range c {
		m.ready()
	}
	return c
}

// URL is the cluster's as a store.
func (c Cluster) URL() string {
	var hosts []string
	for _, m := range c {
		hosts = append(hosts, m.Addr)
	}
	return strings.Replace(c[0].scheme, "http", "etcd", 1) + "://" + strings.Join(hosts, ",")
}

func (m *Member) start() {
	m.t.Helper()
	var err error
	m.Child, err = child.Start(exec.Command(m.path, m.args...)) //nolint:noctx // the cleanup ends it
	require.NoError(m.t, err)
}

func (m *Member) ready() {
	m.t.Helper()
	require.NoError(m.t, m.Until(m.t.Context(), "be well", func() bool {
		answer, err := http.Get(m.health + "/health") //nolint:noctx // Until is bounded
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}))
}

// Kill ends the member as kill -9 does.
func (m *Member) Kill() { require.NoError(m.t, m.Child.Kill()) }

// Restart starts the member again, with its data, and returns when it is well.
func (m *Member) Restart() {
	m.t.Helper()
	m.start()
	m.ready()
}

// Stop has the member stand still, and Continue go on: it is there, and does not answer.
func (m *Member) Stop() { require.NoError(m.t, m.Signal(syscall.SIGSTOP)) }

// Continue is the other half of Stop.
func (m *Member) Continue() { require.NoError(m.t, m.Signal(syscall.SIGCONT)) }
