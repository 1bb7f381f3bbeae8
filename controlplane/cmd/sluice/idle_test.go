package main

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// Connections that do nothing keep nobody out, however few files serve may open; with TLS,
// those that never finish a handshake.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	cert, key := buildtest.Certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key) // the authority's, serve's and the proxy's
	require.NoError(t, err)
	for name, flags := range map[string][]string{"plain": nil, "TLS": {"--tls-cert", cert, "--tls-key", key, "--xds-client-ca", cert}} {
		t.Run(name, func(t *testing.T) {
			s := startWith(t, "ulimit -n 64; ", t.TempDir(), flags...)
			if flags != nil {
				s.url = "https" + strings.TrimPrefix(s.url, "http")
				s.tls = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: buildtest.Pool(&pair), Certificates: []tls.Certificate{pair}}
			}
			_, err := s.apply("version: 1\nrules: []\n")
			require.NoError(t, err)
			s.idle(t)
		})
	}
}

// idle has 80 connections do nothing in each way there is, beside honest callers.
func (s server) idle(t *testing.T) {
	t.Helper()
	_, address, _ := strings.Cut(s.url, "://")
	clientHello := append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, make([]byte, 100)...)
	for _, a := range []struct {
		name, address string
		begin         func(net.Conn)
	}{
		{"silent to xDS", s.xds, func(net.Conn) {}},
		{"silent to HTTP", address, func(net.Conn) {}},
		{"idle HTTP/2 to xDS", s.xds, func(c net.Conn) { flood(c, 0, nil) }},
		{"HTTP/2 to HTTP", address, func(c net.Conn) { flood(c, 0, nil) }},
		{"streams without a request", s.xds, func(c net.Conn) { flood(c, 10, func(*http2.Framer, uint32) error { return nil }) }},
		{"unfinished requests", address, func(c net.Conn) { _, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\n") }},
		{"unfinished bodies", address, func(c net.Conn) {
			_, _ = io.WriteString(c, "POST /v1/policies HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
		}},
		{"idle after a request", address, func(c net.Conn) {
			_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}},
		{"handshakes without end", s.xds, func(c net.Conn) { _, _ = c.Write(clientHello) }},
	} {
		t.Run(a.name, func(t *testing.T) {
			for i := range 80 {
				c := s.dial(t, a.address, []string{honestIP, hostileIP}[i%2])
				defer c.Close()
				a.begin(c)
			}
			for range 3 {
				s.honest(t, a.name)
			}
		})
	}
}
