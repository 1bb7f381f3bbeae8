package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// step is a request and the expected status.
type step struct {
	want    int
	path    string
	headers []string
}

func (p *proxy) walk(t *testing.T, steps []step) {
	for i, s := range steps {
		require.Equal(t, s.want, p.status(t, s.path, s.headers...), "step %d: %s %q", i, s.path, s.headers)
	}
}

// raw sends a request with exactly this target and these header lines.
func (p *proxy) raw(t *testing.T, target string, lines ...string) *http.Response {
	text := "GET " + target + " HTTP/1.1\r\nconnection: close\r\n"
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "host:") {
		text += "host: a\r\n"
	}
	res := p.exchange(t, text+strings.Join(append(lines, "", ""), "\r\n"))
	require.NotNil(t, res, target)
	return res
}

// The rule for a path applies, however a client spells the path.
func TestMatchPaths(t *testing.T) {
	everyProxy(t, func(t *testing.T, d driver) {
		s := serve(t, d, `
version: 1
rules:
  - {name: login, match: {paths: [/login]}, limits: [0/`+far+`]}
  - {name: batch, match: {paths: ["/v1/users:batch", "/cafe/*", "/caf%C3%A9", "/a b*"]}, limits: [0/`+far+`]}
  - {name: literal, match: {paths: ["=/x*"]}, limits: [0/`+far+`]}
  - {name: expression, match: {paths: ["~/u/[a-z ]+", "~/p/.*"]}, limits: [0/`+far+`]}
`)
		for target, want := range map[string]int{
			"/login": denied, "/login?x": denied, "/%6cogin": denied, "/%6Cog%69n": denied, "//login": denied, "/./login": denied,
			"/x/../login": denied, "/x/%2e%2e/login": denied, "/x/..//login": denied, `\login`: 400, `/x\..\login`: denied,
			"/login/": allowed, "/Login": allowed, "/loginx": allowed,
			"/x%2f..%2flogin": 307, "/%2flogin": 307, "/x%5c..%5clogin": 307,
			"/v1/users:batch": denied, "/v1/users%3Abatch": denied, "/v1/users%3abatch": denied, "/v1/users%253Abatch": allowed,
			"/cafe/": denied, "/cafe": allowed, "/caf%C3%A9": denied, "/caf%c3%a9": denied, "/a%20b/c": denied,
			"/login;a=1": denied, "/login%3Ba": denied, "/;a/login": denied, "/;/;a/login": denied, "/a/..;/login": denied, "/x/%2e%2e;/login": denied,
			"/cafe;a/b": denied, "/u/bob;a": denied, "/login;/": allowed, "/log;in": allowed,
			"/x*": denied, "/x%2A": denied, "/xy": allowed,
			"/u/bob": denied, "/p/%0Ax": denied, "/u/bo%20b": denied, "/u/%62ob": denied, "/u/": allowed,
		} {
			require.Equal(t, want, s.raw(t, target).StatusCode, target)
		}
		res := s.raw(t, "/x%2f..%2flogin?a=%2f")
		require.Equal(t, "/login?a=%2f", res.Header.Get("location"))
	})
}

// A client cannot set its address in x-forwarded-for, beyond the trusted hops.
func TestForwardedForIsNotBelieved(t *testing.T) {
	const policy = `
version: 1
rules: [{name: r, key: [client_ip], limits: [1/` + far + `]}]
`
	everyProxy(t, func(t *testing.T, d driver) {
		s := serve(t, d, policy)
		for i, forwarded := range []string{"", "203.0.113.9", "203.0.113.10, 127.0.0.1", "127.0.0.2", "[::1]:80", "unknown", ","} {
			var headers []string
			if forwarded != "" {
				headers = []string{"x-forwarded-for", forwarded, "x-real-ip", forwarded, "forwarded", "for=" + forwarded}
			}
			want := denied
			if i == 0 {
				want = allowed
			}
			require.Equal(t, want, s.status(t, "/", headers...), forwarded)
		}
	})
}

// What client_ip is where Envoy stands, as docs/clients.md says. Of each pair of requests
// the second is denied if it comes from the same client.
func TestWhoTheClientIs(t *testing.T) {
	const (
		edge       = "use_remote_address: true"
		customized = "original_ip_detection_extensions:\n          - name: custom\n            typed_config: {\"@type\": " +
			"type.googleapis.com/envoy.extensions.http.original_ip_detection.custom_header.v3.CustomHeaderConfig, header_name: cf-connecting-ip}"
		chains = "    filter_chains:\n"
		tcp    = "    listener_filters:\n    - name: proxy_protocol\n      typed_config: {\"@type\": " +
			"type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol, allow_requests_without_proxy_protocol: true}\n"
	)
	for _, d := range envoys(t, true) {
		for name, c := range map[string]struct {
			old, set string
			prefix   string      // of client_ip
			pairs    [][2]string // what each of two clients sends before, or among, its headers
			same     []bool
		}{
			"behind one proxy": {edge, edge + "\n          xff_num_trusted_hops: 1", "", [][2]string{
				{"x-forwarded-for: 203.0.113.1", "x-forwarded-for: 198.51.100.1, 203.0.113.1"},
				{"x-forwarded-for: 203.0.113.2", "x-forwarded-for: 203.0.113.3"},
				{"x-forwarded-for: 203.0.113.4:4711", "x-forwarded-for: 203.0.113.5:4711"}, // Envoy reads no port: both are the proxy
			}, []bool{true, false, true}},
			"in a sidecar": {edge, "use_remote_address: false", "", [][2]string{
				{"x-forwarded-for: 203.0.113.1", "x-forwarded-for: 198.51.100.1, 203.0.113.1"},
				{"x-forwarded-for: 203.0.113.2", "x-forwarded-for: 203.0.113.3"},
			}, []bool{true, false}},
			"in networks of 48 bits": {edge, customized, "v6_prefix: 48", [][2]string{
				{"cf-connecting-ip: 2001:db8:0:1::1", "cf-connecting-ip: 2001:db8:0:2::1"},
				{"cf-connecting-ip: 2001:db8:0:1::1", "cf-connecting-ip: 2001:db8:1:1::1"},
			}, []bool{true, false}},
			"behind a content network": {edge, customized, "", [][2]string{
				{"cf-connecting-ip: 2001:db8:0:1::1", "cf-connecting-ip: 2001:db8:0:1::2"},
				{"cf-connecting-ip: 2001:db8:0:1::1", "cf-connecting-ip: 2001:db8:0:2::1"},
				{"cf-connecting-ip: 203.0.113.2", "cf-connecting-ip: 203.0.113.3"},
				{"cf-connecting-ip: 64:ff9b::203.0.113.4", "cf-connecting-ip: 64:ff9b::203.0.113.5"}, // two of the IPv4 internet behind NAT64
			}, []bool{true, false, false, false}},
			"behind a TCP balancer": {chains, tcp + chains, "", [][2]string{
				{"PROXY TCP4 203.0.113.1 192.0.2.1 1 80", "PROXY TCP4 203.0.113.1 192.0.2.1 2 80"},
				{"PROXY TCP4 203.0.113.2 192.0.2.1 1 80", "PROXY TCP4 203.0.113.3 192.0.2.1 1 80"},
			}, []bool{true, false}},
		} {
			t.Run(d.name+" "+name, func(t *testing.T) {
				p := d.listen(t, proxyOptions{policy: `
version: 1
rules: [{name: r, match: {hosts: [client.example]}, key: [{client_ip: {` + c.prefix + `}}, path], limits: [1/` + far + `]}]
`, edit: replacing(c.old, c.set)})
				for i, pair := range c.pairs {
					for j, line := range pair {
						head := fmt.Sprintf("GET /%d HTTP/1.1\r\nhost: client.example\r\n%s\r\n\r\n", i, line)
						if strings.HasPrefix(line, "PROXY") {
							head = fmt.Sprintf("%s\r\nGET /%d HTTP/1.1\r\nhost: client.example\r\n\r\n", line, i)
						}
						want := allowed
						if j == 1 && c.same[i] {
							want = denied
						}
						require.Equal(t, want, p.statusOf(t, head), line)
					}
				}
			})
		}
	}
}
