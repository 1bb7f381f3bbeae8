package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const responses = `
version: 1
rules:
  - name: slow down
    match: {paths: [/slow]}
    algorithm: fixed_window_per_key
    limits: [5/1h, 0/1d]
    response:
      status: 503
      body: "<p>%RULE%: %LIMIT% is 100%%\n"
      content_type: text/html; charset=utf-8
      headers: {X-Reason: "%RULE%", x-left: "%REMAINING%/%LIMIT%", x-wait: "in %RETRY_AFTER% s", x-plain: "yes"}
      grpc_status: unavailable
  - name: waits
    match: {paths: [/waits]}
    algorithm: fixed_window_per_key
    limits: [1/1h]
    response: {status: 400, body: "", headers: {x-wait: "%RETRY_AFTER%"}, grpc_status: 9}
  - name: plain
    match: {paths: [/plain]}
    limits: [0/1h]
  - name: late
    match: {paths: [/slow]}
    limits: [0/1h]
    response: {status: 599}
`

// A gRPC client gets a trailers-only response: 200, with the gRPC status and the body
// as message among the headers.
func TestGRPCResponse(t *testing.T) {
	everyProxy(t, func(t *testing.T, d driver) {
		s := serve(t, d, responses)
		for _, version := range d.versions() {
			for _, c := range []struct{ path, contentType, status, message, left string }{
				{"/slow", "application/grpc", "14", "<p>slow down: 0 is 100%25%0A", "0/0"},
				{"/slow", "application/grpc+proto", "14", "<p>slow down: 0 is 100%25%0A", "0/0"},
				{"/plain", "application/grpc", "8", "rate limit exceeded", ""},
			} {
				res, body := s.get(t, c.path, ":version", version, ":method", "POST", "content-type", c.contentType, "te", "trailers")
				require.Empty(t, body)
				require.Contains(t, res.Proto, version)
				require.Equal(t, 200, res.StatusCode)
				require.Equal(t, "application/grpc", res.Header.Get("content-type"))
				require.Equal(t, c.status, res.Header.Get("grpc-status"))
				require.Equal(t, c.message, res.Header.Get("grpc-message"))
				require.Equal(t, c.left, res.Header.Get("x-left"))
				require.Equal(t, "true", res.Header.Get("x-envoy-ratelimited"))
				require.Empty(t, res.Trailer)
			}
		}
		res, _ := s.get(t, "/slow", "content-type", "application/grpc-web")
		require.Equal(t, 503, res.StatusCode, "gRPC-Web is not gRPC")
	})
}

// The fields of an upstream's own limits are kept, and the client sees the tighter of
// both limits.
func TestUpstreamFields(t *testing.T) {
	everyProxy(t, func(t *testing.T, d driver) {
		p := d.listen(t, proxyOptions{policy: `
version: 1
headers: both
rules: [{name: r, match: {paths: [/limited]}, algorithm: fixed_window_per_key, limits: [1000/366d]}]
`})
		const policy, ours, tail = `"r";q=1000;w=31622400`, `"r";r=99\d;t=31622\d\d\d`, `, 1000;w=31622400`
		for _, c := range []struct {
			name string
			send []string
			want map[string]string // regular expressions for the values, joined by newlines
		}{
			{"nothing", nil, map[string]string{
				"ratelimit-policy": policy, "ratelimit": ours, "x-ratelimit-limit": "1000" + tail,
				"x-ratelimit-remaining": `99\d`, "x-ratelimit-reset": `31622\d\d\d`, "retry-after": "",
			}},
			{"tighter", []string{
				`RateLimit: "up";r=1;t=5`, `RateLimit: "day";r=2`, `RateLimit-Policy: "up";q=2;w=5`, "Retry-After: 5",
				"X-RateLimit-Limit: 2", "X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 5",
			}, map[string]string{
				"ratelimit-policy": `"up";q=2;w=5, ` + policy, "ratelimit": `"up";r=1;t=5, ?"day";r=2, ` + ours, "x-ratelimit-limit": "2" + tail,
				"x-ratelimit-remaining": "1", "x-ratelimit-reset": "5", "retry-after": "5",
			}},
			{"older drafts and milliseconds", []string{
				"RateLimit: limit=100, remaining=50, reset=5", "RateLimit-Policy: 100;w=60", "X-RateLimit-Remaining: 1.0", "X-RateLimit-Reset: 1700000000123.5",
			}, map[string]string{
				"ratelimit-policy": `"upstream";q=100;w=60, ` + policy, "ratelimit": `"upstream";r=50;t=5, ` + `"r";r=9\d\d;t=31622\d\d\d`,
				"x-ratelimit-remaining": "1", "x-ratelimit-reset": "1700000000124",
			}},
		} {
			var headers []string
			for _, line := range c.send {
				headers = append(headers, "x-send", line)
			}
			res, _ := p.get(t, "/limited", headers...)
			for name, want := range c.want {
				require.Regexp(t, "^"+want+"$", strings.Join(res.Header.Values(name), "\n"), "%s: %s", c.name, name)
			}
			res, _ = p.get(t, "/", headers...)
			for _, line := range c.send {
				name, value, _ := strings.Cut(line, ": ")
				require.Contains(t, res.Header.Values(name), value, "%s: no rule matches, so the fields stay the same", c.name)
			}
		}
	})
}
