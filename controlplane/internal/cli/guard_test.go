package cli

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/reload"
)

// Every combination of protections and addresses.
func TestWhatServeAllows(t *testing.T) {
	for bits := range 1 << 7 {
		has := func(bit int) bool { return bits>>bit&1 == 1 }
		secure, access, httpCA, xdsCA, httpOpen, xdsOpen, insecure := has(0), has(1), has(2), has(3), has(4), has(5), has(6)
		o := listenOptions{proxies: xdsListener, http: "127.0.0.1:1", xds: "[::1]:2", insecure: insecure}
		for flag, given := range map[*string]bool{&o.tlsCert: secure, &o.tlsKey: secure, &o.access: access, &o.httpClientCA: httpCA, &o.xdsClientCA: xdsCA} {
			if given {
				*flag = "file"
			}
		}
		if httpOpen {
			o.http = "0.0.0.0:1"
		}
		if xdsOpen {
			o.xds = "192.0.2.1:2"
		}
		together := (!httpCA || secure && access) && (!xdsCA || secure)
		httpSafe, xdsSafe := !httpOpen || secure && access, !xdsOpen || secure && xdsCA
		err := o.check()
		require.Equal(t, together && (httpSafe && xdsSafe || insecure), err == nil, "%+v: %v", o, err)
		if err != nil {
			require.Equal(t, ExitUsage, ExitCode(err))
			require.NotEmpty(t, Hint(err))
			continue
		}
		open, err := o.open()
		require.NoError(t, err)
		flags := ""
		for _, a := range open {
			flags += a.flag
		}
		require.Equal(t, !httpSafe, strings.Contains(flags, "--http"), "%+v", o)
		require.Equal(t, !xdsSafe, strings.Contains(flags, "--xds"), "%+v", o)
	}
}

// authority issues certificates for 127.0.0.1 with one DNS name.
type authority struct {
	*tls.Certificate
	pem string
}

func newAuthority() *authority {
	a := &authority{Certificate: buildtest.Issue(nil, nil)}
	a.pem, _ = buildtest.PEM(a.Certificate)
	return a
}

func (a *authority) issue(name string) (cert, key string) {
	return buildtest.PEM(buildtest.Issue(a.Certificate, []string{name}))
}

// guarded is a real serve whose files are changed while it runs.
type guarded struct {
	t        *testing.T
	dir      string
	serve    *command
	web, xds string
}

func (g *guarded) path(name string) string { return filepath.Join(g.dir, name) }

func (g *guarded) write(name, text string) {
	require.NoError(g.t, os.WriteFile(g.path(name), []byte(text), 0o600))
}

// changed waits until a changed file is due to be looked at.
func (g *guarded) changed() { time.Sleep(reload.Interval) }

func (g *guarded) writePair(name string, a *authority, san string) {
	cert, key := a.issue(san)
	g.write(name+".pem", cert)
	g.write(name+".key", key)
}

func digestOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// client trusts an authority and shows a certificate, "" for none.
func (g *guarded) client(a *authority, name string) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: g.config(a, name)}, Timeout: time.Minute}
}

func (g *guarded) config(a *authority, name string) *tls.Config {
	config := &tls.Config{RootCAs: buildtest.Pool(a.Certificate), MinVersion: tls.VersionTLS12}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(g.path(name+".pem"), g.path(name+".key"))
		require.NoError(g.t, err)
		// Whatever the server says that it accepts.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return config
}

func (g *guarded) status(c *http.Client, token string) (int, error) {
	request, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, "https://"+g.web+"/v1/status", http.NoBody)
	require.NoError(g.t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.Do(request)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Body.Close()
}

// stream says whether the xDS server lets a certificate in. TLS 1.2 tells so in
// the handshake.
func (g *guarded) stream(a *authority, name string) error {
	config := g.config(a, name)
	config.MaxVersion = tls.VersionTLS12
	config.NextProtos = []string{"h2"}
	c, err := tls.Dial("tcp", g.xds, config)
	if err == nil {
		err = c.Close()
	}
	return err
}

func startGuarded(t *testing.T, a *authority) *guarded {
	g := &guarded{t: t, dir: t.TempDir()}
	g.write("ca.pem", a.pem)
	g.writePair("server", a, "server.test")
	g.writePair("ops", a, "ops.test")
	g.writePair("edge", a, "edge.test")
	g.write("access", fmt.Sprintf("token ci apply %s\ntoken watch read %s\ncertificate ops.test admin\n",
		digestOf("token of ci"), digestOf("token of watch")))
	g.serve = start(t, newServeCommand(), "--data", g.path("data"), "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0",
		"--tls-cert", g.path("server.pem"), "--tls-key", g.path("server.key"),
		"--http-client-ca", g.path("ca.pem"), "--xds-client-ca", g.path("ca.pem"), "--access", g.path("access"))
	g.web, g.xds = g.serve.find(t, `msg=serving http=(\S+)`), g.serve.find(t, `xds=(\S+)`)
	return g
}

// TestConnectionsAreBounded: serve bounds what a connection and a request may have. The
// script secure.txtar tests whom serve lets in.
func TestConnectionsAreBounded(t *testing.T) {
	a := newAuthority()
	g := startGuarded(t, a)
	roots := g.config(a, "").RootCAs
	_, err := tls.Dial("tcp", g.web, &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10})
	require.Error(t, err, "TLS 1.2 is the floor")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.web+"/v1/status", http.NoBody)
	require.NoError(t, err)
	request.Header.Set("X-Long", strings.Repeat("x", 2*maxHeaderBytes))
	response, err := g.client(a, "ops").Do(request)
	if err == nil { // HTTP/2 may cut it off instead
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, response.StatusCode)
	}

	// Connections are bounded, so requests are: HTTP/2's usual are 250 of a connection.
	c, err := tls.Dial("tcp", g.web, &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(c, c)
	require.NoError(t, framer.WriteSettings())
	first, err := framer.ReadFrame()
	require.NoError(t, err)
	streams, _ := first.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams)
	require.EqualValues(t, maxRequests, streams)
	require.NoError(t, g.serve.end(t))
	require.NotContains(t, g.serve.out.String(), "token of")
}

func TestServeReadsItsFilesAgain(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(), newAuthority()
	g := startGuarded(t, old)
	kept := g.client(old, "ops") // one connection, from before
	code, err := g.status(kept, "")
	require.NoError(t, err)
	require.Equal(t, 200, code)
	code, err = g.status(kept, "token of ci")
	require.NoError(t, err)
	require.Equal(t, 200, code)

	// A token is taken away, another given.
	g.write("access", "token new read "+digestOf("token of new")+"\ncertificate ops.test admin\n")
	g.changed()
	for token, want := range map[string]int{"token of ci": 401, "token of watch": 401, "token of new": 200, "": 200} {
		code, err = g.status(kept, token)
		require.NoError(t, err)
		require.Equal(t, want, code, token)
	}

	// Another authority, for the server's certificate and for the clients'.
	g.write("access", "certificate ops.test admin\n")
	g.write("ca.pem", next.pem)
	g.writePair("server", next, "server.test")
	g.writePair("new-ops", next, "ops.test")
	g.writePair("new-edge", next, "edge.test")
	g.changed()
	code, err = g.status(kept, "")
	require.NoError(t, err)
	require.Equal(t, 401, code, "a connection from before does not outlive the trust in its authority")
	_, err = g.status(g.client(old, ""), "")
	require.Error(t, err, "the server shows its new certificate")
	_, err = g.status(g.client(next, "ops"), "")
	require.Error(t, err)
	code, err = g.status(g.client(next, "new-ops"), "")
	require.NoError(t, err)
	require.Equal(t, 200, code)
	require.Error(t, g.stream(next, "edge"))
	require.NoError(t, g.stream(next, "new-edge"))
	require.NoError(t, g.serve.end(t))
}
