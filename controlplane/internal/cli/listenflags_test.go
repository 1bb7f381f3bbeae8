package cli

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/sluice-ratelimit/sluice/build/certtest"
)

// Every combination of protections and addresses.
func TestWhatServeAllows(t *testing.T) {
	for bits := range 1 << 7 {
		next := 0
		has := func() bool {
			next++
			return bits>>(next-1)&1 == 1
		}
		secure := has()
		access := has()
		httpCA := has()
		xdsCA := has()
		httpOpen := has()
		xdsOpen := has()
		insecure := has()
		o := listenOptions{words: serveWords, http: "127.0.0.1:1", proxies: "[::1]:2", insecure: insecure}
		for flag, given := range map[*string]bool{
			&o.tlsCert: secure, &o.tlsKey: secure, &o.access: access, &o.httpClientCA: httpCA, &o.proxyCA: xdsCA,
		} {
			if given {
				*flag = "file"
			}
		}
		if httpOpen {
			o.http = "0.0.0.0:1"
		}
		if xdsOpen {
			o.proxies = "192.0.2.1:2"
		}
		together := (!httpCA || secure && access) && (!xdsCA || secure)
		httpSafe, xdsSafe := !httpOpen || secure && access, !xdsOpen || secure && xdsCA
		open, err := o.check()
		require.Equal(t, together && (httpSafe && xdsSafe || insecure), err == nil, "%+v: %v", o, err)
		if err != nil {
			require.Equal(t, ExitUsage, ExitCode(err))
			require.NotEmpty(t, Hint(err))
			continue
		}
		flags := ""
		for _, a := range open {
			flags += a.flag
		}
		require.Equal(t, !httpSafe, strings.Contains(flags, "--http"), "%+v", o)
		require.Equal(t, !xdsSafe, strings.Contains(flags, "--xds"), "%+v", o)
	}
}

// trusting is the configuration of a client that trusts the certificate in a file.
func trusting(t *testing.T, cert string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(cert)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(text))
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// TestConnectionsAreBounded: serve bounds what a connection and a request may have. The
// scripts secure.txtar and reload.txtar test which callers serve lets in.
func TestConnectionsAreBounded(t *testing.T) {
	cert, key := certtest.Files(t)
	serve := start(t, newServeCommand(), "--data", t.TempDir(), "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0",
		"--tls-cert", cert, "--tls-key", key)
	web := serve.find(t, `msg=serving http=(\S+)`)
	config := trusting(t, cert)
	old := config.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	_, err := tls.Dial("tcp", web, old)
	require.Error(t, err, "TLS 1.2 is the floor")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+web+"/v1/status", http.NoBody)
	require.NoError(t, err)
	request.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	response, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config}}).Do(request)
	if err == nil { // HTTP/2 may cut it off instead
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, response.StatusCode)
	}

	// Connections are bounded, so requests are: HTTP/2's usual are 250 of a connection.
	config.NextProtos = []string{"h2"}
	c, err := tls.Dial("tcp", web, config)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(c, c)
	require.NoError(t, framer.WriteSettings())
	first, err := framer.ReadFrame()
	require.NoError(t, err)
	streams, _ := first.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams)
	require.EqualValues(t, 16, streams)
	require.NoError(t, serve.end(t))
}
