package manage

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const secret = "s3cret-of-the-test"

func operation(name string) Operation {
	for _, op := range Operations {
		if op.Name == name {
			return op
		}
	}
	panic(name)
}

func newClient() *Client {
	loopback, _ := ParseAllow(DefaultAllow)
	return &Client{Token: secret, Timeout: time.Minute, Reach: Reach{Allow: &loopback}}
}

// at is a server's URL as a management path.
func at(t *testing.T, server *httptest.Server) *url.URL {
	t.Helper()
	u, err := url.Parse(server.URL + "/m/")
	require.NoError(t, err)
	return u
}

// serve answers every request with the same.
func serve(t *testing.T, answer http.HandlerFunc) *url.URL {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return at(t, s)
}

// What is not a management path is named as such, and where it points to never sees
// the token.
func TestNobodyElseIsAsked(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s was asked with %q", r.URL, r.Header)
	}))
	defer elsewhere.Close()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"} {
		t.Setenv(name, elsewhere.URL)
	}
	c, query := newClient(), url.Values{"rule": {"r"}, "key": {"alice"}}
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	_, err := c.Counters(t.Context(), u, operation("get"), query)
	require.ErrorContains(t, err, "answers 307, not as a management path does")
	for _, tc := range []struct{ op, body, want string }{
		{"get", "hello", ""}, {"get", `{}`, ""}, {"get", `{"value":"5"}`, ""}, {"get", `[1]`, ""},
		{"peek", `{"value":5}`, ""},
		{"peek", `{"allowed":true}`, ""}, {"peek", `{"allowed":true,"rules":5}`, ""}, {"expires-at", `{"windows":[]}`, ""},
		{"get", `{"value":1,"windows":[{"per_ns":"x"}]}`, ""}, {"stats", `{"value":5}`, ""}, {"stats", `{"rules":null}`, ""},
		{"stats", `{"rules":[` + strings.Repeat(`{},`, 10_000) + `{}]}`, ""},
		{"stats", `{"rules":[{"metrics":{` + strings.Repeat(`"a":1,`, 200) + `"a":1}}]}`, ""},
		{"get", strings.Repeat(" ", maxAnswer+1), "answers more than 16 MiB"},
		{"get", `{"value":1,"windows":[{"name":"Bearer ` + secret + `"}]}`, "answers with the token in it"},
		{"explain", `{}`, ""}, {"explain", `{"allowed":true,"rules":[{"outcome":"matches"}]}`, ""},
		{"explain", `{"allowed":true,"rules":[{"outcome":"matches","allowed":true}]}`, ""},
	} {
		u := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tc.body)) })
		if tc.op == "explain" {
			_, err = c.Explain(t.Context(), u, "{}")
		} else {
			_, err = c.Counters(t.Context(), u, operation(tc.op), query)
		}
		if tc.want == "" {
			tc.want = "answers, but not as a management path does"
		}
		require.ErrorContains(t, err, tc.want, "%.80s", tc.body)
	}
}

// Errors say what is wrong and have neither the token nor a key in them, nor
// anything that a terminal would obey.
func TestErrors(t *testing.T) {
	c, query := newClient(), url.Values{"rule": {"r"}, "key": {"alice"}}
	for want, answer := range map[string]http.HandlerFunc{
		"does not know the token": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"x"}`))
		},
		"proxy 127.0.0.1:PORT: no·[2J": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"no\u001b[2J"}`))
		},
		"answers 418, not as": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("\x1b[2J"))
		},
		"answers with the token": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":%q}`, r.Header.Get("Authorization"))
		},
		"…": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":%q}`, strings.Repeat("é", 5000))
		},
		"malformed HTTP": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_, _ = conn.Write([]byte("\x1b[2J\x9b2J" + strings.Repeat("z", 300) + "\r\n\r\n"))
			_ = conn.Close()
		},
		"server response headers exceeded": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				w.Header().Set(fmt.Sprint("x-", i), strings.Repeat("z", 2000))
			}
		},
		"not as a management path does": func(w http.ResponseWriter, _ *http.Request) { // a bomb, unless it stays packed
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(bytes.Repeat([]byte(" "), 10<<20))
			_ = z.Close()
		},
	} {
		u := serve(t, answer)
		_, err := c.Counters(t.Context(), u, operation("get"), query)
		require.ErrorContains(t, err, strings.Replace(want, "127.0.0.1:PORT", u.Host, 1))
		require.Less(t, len(err.Error()), 600)
		for _, no := range []string{secret, "alice", "\x1b", "\x9b", "\u009b"} {
			require.NotContains(t, err.Error(), no, want)
		}
	}
	_, err := c.Counters(t.Context(), &url.URL{Scheme: "http", Host: "127.0.0.1:1", Path: "/m/"}, operation("get"), query)
	require.ErrorContains(t, err, "reach proxy 127.0.0.1:1: ")
	require.NotContains(t, err.Error(), "alice")
}

// A proxy that answers a byte at a time has no more time than one that does not
// answer, and a caller who goes takes no more of it.
func TestSlowProxies(t *testing.T) {
	c := newClient()
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte(" "))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	})
	c.Timeout = 200 * time.Millisecond
	_, err := c.Counters(t.Context(), u, operation("get"), nil)
	require.ErrorContains(t, err, "within 200ms") // the proxy never ends
	c.Timeout = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.Counters(ctx, u, operation("get"), nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// With TLS the certificate has to be for the name or address that is asked and
// from a CA that is trusted; before that no token is sent.
func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = w.Write([]byte(`{"value":7,"windows":[]}`))
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	c := newClient()
	_, err := c.Counters(t.Context(), at(t, s), operation("get"), nil)
	require.ErrorContains(t, err, "certificate")
	var failure *Failure
	require.ErrorAs(t, err, &failure)
	require.Contains(t, failure.Hint, "--manage-ca")
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	c.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	a, err := c.Counters(t.Context(), at(t, s), operation("get"), nil)
	require.NoError(t, err)
	require.EqualValues(t, 7, *a.Value)
	_, port, _ := net.SplitHostPort(at(t, s).Host)
	byName := &url.URL{Scheme: "https", Host: "localhost:" + port, Path: "/m/"}
	_, err = c.Counters(t.Context(), byName, operation("get"), nil)
	require.ErrorContains(t, err, "not localhost", "the certificate is for example.com and 127.0.0.1")
}

// What a name leads to is judged when it is dialed, whatever DNS said before.
func TestRebinding(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"value":7}`))
	}))
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(at(t, s).Host)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate()) // for example.com
	u := &url.URL{Scheme: "https", Host: "example.com:" + port, Path: "/m/"}
	for _, tc := range []struct{ allow, is, want string }{
		{DefaultAllow, "127.0.0.1", ""},
		{"example.com", "127.0.0.1", ""},
		{"10.0.0.0/8", "127.0.0.1", "example.com:" + port + " at 127.0.0.1 is not allowed by --manage-allow"},
		{"other.example", "127.0.0.1", "is not allowed by --manage-allow"},
		{DefaultAllow, "169.254.169.254", "at 169.254.169.254 is not allowed"},
		{"example.com", "0.0.0.0", "is not an address that a proxy can have"},
	} {
		c := newClient()
		allow, err := ParseAllow(tc.allow)
		require.NoError(t, err)
		c.Reach.Allow, c.resolver = &allow, dns(t, netip.MustParseAddr(tc.is))
		c.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		a, err := c.Counters(t.Context(), u, operation("get"), nil)
		if tc.want == "" {
			require.NoError(t, err, "%v", tc)
			require.EqualValues(t, 7, *a.Value)
			continue
		}
		require.ErrorContains(t, err, tc.want, "%v", tc)
	}
}

// dns starts a server for which every name is the IPv4 address.
func dns(t *testing.T, is netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		question := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(question)
			if err != nil {
				return
			}
			end := 12 + bytes.IndexByte(question[12:n], 0) + 5
			answer := append([]byte{}, question[:end]...)
			copy(answer[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
			if binary.BigEndian.Uint16(question[end-4:]) == 1 { // A
				answer[7] = 1
				answer = append(append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), is.AsSlice()...)
			}
			_, _ = conn.WriteTo(answer, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// A key that no proxy would read is refused here, not as a proxy without
// management.
func TestLongKeys(t *testing.T) {
	get := Operations[2]
	require.Equal(t, "get", get.Name)
	_, err := get.Query(Subject{Rule: "r", Key: []string{strings.Repeat("a", maxQuery-100)}})
	require.NoError(t, err)
	for _, key := range [][]string{
		{strings.Repeat("a", maxQuery)},
		{strings.Repeat("\x00", maxQuery/3+1)},
		{strings.Repeat("a", maxQuery/2), strings.Repeat("b", maxQuery/2)},
	} {
		_, err = get.Query(Subject{Rule: "r", Key: key})
		require.EqualError(t, err, "key has more than 57344 bytes, escaped as in a URL: no proxy accepts so long a request")
	}
}
