package servertest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Etcd is the members of a cluster of etcd.
type Etcd []*Server

// StartEtcd starts a cluster of n members, with these arguments more, and returns when each
// answers. With --cert-file among them it takes TLS alone.
func StartEtcd(t testing.TB, n int, args ...string) (c Etcd) {
	t.Helper()
	path, more := find(t, "SLUICE_ETCD", "etcd-*/etcd"), free(t, 2*n)
	scheme, peers := "http", []string(nil)
	if slices.Contains(args, "--cert-file") {
		scheme = "https"
	}
	for i := range n {
		peers = append(peers, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, more[i]))
	}
	for i := range n {
		m, health := newServer(t, path), fmt.Sprint("http://127.0.0.1:", more[n+i])
		_, peer, _ := strings.Cut(peers[i], "=")
		m.args = append([]string{
			"--name", fmt.Sprint("m", i), "--data-dir", m.dir, "--initial-cluster", strings.Join(peers, ","), "--log-level",
			"error",
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--listen-metrics-urls", health,
			"--listen-client-urls", scheme + "://" + m.Addr(), "--advertise-client-urls", scheme + "://" + m.Addr(),
		}, args...)
		m.answers = func() bool {
			answer, err := http.Get(health + "/health") //nolint:noctx // Until is bounded
			return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
		}
		m.start()
		c = append(c, m)
	}
	for _, m := range c {
		m.until("answer", m.answers)
	}
	return c
}

// URL is the cluster's as a store.
func (c Etcd) URL() string {
	scheme := "etcd://"
	if slices.Contains(c[0].args, "--cert-file") {
		scheme = "etcds://"
	}
	return scheme + addresses(c)
}
