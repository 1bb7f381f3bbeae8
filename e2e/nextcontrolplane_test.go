//go:build long

package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// A proxy with two control planes, the second of them restored from a backup of the
// first, goes to the one that is there. Limits and counters stay on meanwhile.
func TestNextControlPlane(t *testing.T) {
	t.Parallel()
	eachEnvoy(t, func(t *testing.T, d driver) {
		first := startControlPlane(t)
		first.apply(t, perUser("3/"+far))
		dir := t.TempDir()
		backup := filepath.Join(dir, "backup")
		sluiceOK(t, "store", "backup", "-o", backup, "--server", first.url())
		sluiceOK(t, "store", "restore", backup, "--data", filepath.Join(dir, "data"))
		second := newControlPlane(t, dir)
		t.Cleanup(func() { second.kill(t) })

		p := d.start(t, proxyOptions{node: "edge", xds: first.xds + "," + second.xds})
		runs := func(c *controlPlane, revision uint64) {
			eventually(t, time.Minute, "the proxy to run the revision", func() bool {
				edge := c.proxies(t)["edge"]
				return edge.Connected && edge.Runs == revision && !edge.Waiting
			})
		}
		get := func() int { return p.status(t, "/", "x-user-id", "alice") }
		runs(first, 1)
		require.False(t, second.proxies(t)["edge"].Connected, "the first that answers has it")
		require.Equal(t, []int{200, 200}, []int{get(), get()})

		first.kill(t)
		require.Equal(t, []int{200, 429}, []int{get(), get()}, "with no control plane")
		runs(second, 1)
		require.Equal(t, 429, get(), "with the restored one")
		second.apply(t, perUser("5/"+far))
		require.Equal(t, []int{200, 200, 429}, []int{get(), get(), get()}, "its next revision keeps the counters")

		first.start(t)
		second.kill(t)
		runs(first, 2)
		out := sluiceOK(t, "status", "--server", first.url())
		require.Contains(t, out, "THIS SERVE IS BEHIND 1 CONNECTED PROXY")
		require.Equal(t, 429, get(), "back at the first, which does not take the newer limit back")
		first.apply(t, perUser("6/"+far))
		runs(first, 3)
		require.Equal(t, []int{200, 429}, []int{get(), get()}, "its next revision replaces that")
	})
}

// One DNS name of two control planes is as good as both addresses: a proxy moves on in seconds.
func TestOneNameOfControlPlanes(t *testing.T) {
	t.Parallel()
	const movesOn = 5 * time.Second
	_, port, err := net.SplitHostPort(freeAddress(t))
	require.NoError(t, err)
	addresses := [][4]byte{{127, 0, 0, 2}, {127, 0, 0, 3}}
	var serves []*controlPlane
	for _, a := range addresses {
		c := &controlPlane{data: filepath.Join(t.TempDir(), "data"), xds: net.JoinHostPort(net.IP(a[:]).String(), port),
			http: freeAddress(t)}
		c.start(t)
		t.Cleanup(func() { c.kill(t) })
		c.apply(t, perUser("3/"+far))
		serves = append(serves, c)
	}
	resolver := startNames(t, addresses)
	p := newest(t).start(t, proxyOptions{node: "edge", xds: "serves.example:" + port, workers: 1,
		edit: func(bootstrap []byte) []byte {
			return fmt.Appendf(bootstrap, `
typed_dns_resolver_config:
  name: envoy.network.dns_resolver.cares
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
    resolvers: [{socket_address: {address: 127.0.0.1, port_value: %d}}]
    dns_resolver_options: {no_default_search_domain: true}
`, resolver)
		}})
	at := func() int {
		return slices.IndexFunc(serves, func(c *controlPlane) bool { return c.Running() && c.proxies(t)["edge"].Connected })
	}
	eventually(t, time.Minute, "it to connect", func() bool { return at() >= 0 })
	for range 4 {
		left := at()
		began := time.Now()
		serves[left].kill(t)
		eventually(t, movesOn, "it to move on", func() bool { return at() == 1-left })
		t.Logf("moved on after %s", time.Since(began))
		require.Equal(t, 200, p.status(t, "/", "x-user-id", fmt.Sprint(began)))
		serves[left].start(t)
	}
}

// startNames starts a DNS server on a port of loopback, for which every name has these addresses.
func startNames(t *testing.T, addresses [][4]byte) (port int) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		packet := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			for _, a := range addresses {
				if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
						Body:   &dnsmessage.AResource{A: a},
					})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	}()
	return server.LocalAddr().(*net.UDPAddr).Port
}
