//go:build long

package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// TestNextControlPlaneByName: a proxy that knows two control planes by one DNS name goes on with
// the other when one dies.
func TestNextControlPlaneByName(t *testing.T) {
	t.Parallel()
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			_, port, err := net.SplitHostPort(freeAddress(t))
			require.NoError(t, err)
			var planes [2]*controlPlane
			for i := range planes {
				planes[i] = &controlPlane{data: filepath.Join(t.TempDir(), "data"), xds: fmt.Sprintf("127.0.0.%d:%s", 1+i, port), http: freeAddress(t)}
			}
			one, other := planes[0], planes[1]
			one.start(t)
			t.Cleanup(func() { one.kill(t) })
			one.apply(t, perUser("3/"+far))
			backup := filepath.Join(t.TempDir(), "backup")
			_, errs, exit := sluice(t, "store", "backup", "-o", backup, "--server", one.url())
			require.Zero(t, exit, errs)
			_, errs, exit = sluice(t, "store", "restore", backup, "--data", other.data)
			require.Zero(t, exit, errs)
			other.start(t)
			t.Cleanup(func() { other.kill(t) })

			resolver := "typed_dns_resolver_config: {name: envoy.network.dns_resolver.cares, typed_config: " +
				`{"@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig, resolvers: [{socket_address: {address: 127.0.0.1, port_value: ` +
				nameServer(t, "127.0.0.1", "127.0.0.2") + "}}]}}\n"
			p := d.start(t, proxyOptions{node: "edge", xds: "control.test:" + port, edit: func(bootstrap []byte) []byte {
				return append([]byte(resolver), bootstrap...)
			}})
			connected := func(c *controlPlane) bool { return c.proxies(t)["edge"].Connected }
			eventually(t, time.Minute, "a control plane to have the proxy", func() bool { return connected(one) || connected(other) })
			if connected(other) {
				one, other = other, one
			}
			for range 2 {
				require.Equal(t, 200, p.status(t, "/", "x-user-id", "alice"))
				one.kill(t)
				eventually(t, 5*time.Second, "the other to have it", func() bool { return connected(other) })
				one.start(t)
				one, other = other, one
			}
		})
	}
}

// nameServer answers each question with these addresses, until the test ends, at a port.
func nameServer(t *testing.T, addresses ...string) (port string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for buffer := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
			for _, a := range addresses {
				if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
						Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(a).To4())},
					})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return strings.TrimPrefix(conn.LocalAddr().String(), "127.0.0.1:")
}
