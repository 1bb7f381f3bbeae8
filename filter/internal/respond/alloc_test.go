package respond_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
)

// Garbage collection would stop a worker: what a request needs is there before
// it comes. Only the numbers in response headers are made for it.
func TestDecidingAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		allowed     bool
		most        float64
	}{
		{"allowed", `{"name":"r","key":[{"header":"u"},"host","method",{"path":{"segment":2}}],"limits":["4000000000/1h","4000000000/1d"],
			"match":{"hosts":["*.example.com"],"paths":["/v1/*"],"methods":["GET"],"headers":{"u":"al*"}},"cost":{"header":"c"}}`, true, 0},
		{"denied", `{"name":"r","key":[{"header":"u"}],"limits":["1/1h","4000000000/1d"]},{"name":"s","limits":["4000000000/1h"]}`, false, 1},
		{"missing key", `{"name":"r","key":[{"header":"none"}],"missing_key":"deny","limits":["1/1h"]}`, false, 0},
		{"client", `{"name":"r","key":[{"client_ip":{}}],"limits":["4000000000/1h"]}`, true, 1},
		{"all that is matched", `{"name":"r","limits":["4000000000/1h"],"match":{"client_ips":["10.0.0.0/8","192.0.2.0/24"],"headers":{"u":"~a.*"}},
			"exempt":[{"methods":["POST"]},{"paths":["/v2*","/v3"]},{"hosts":["a","*.b"]}]}`, true, 0},
		{"all that is text", `{"name":"r","key":[{"query":"q"},{"cookie":"c"},"route",{"jwt":{"provider":"p","claim":"sub"}},{"property":["request","protocol"]},
			{"first_of":[{"header":"none"},{"query":"q"}]}],"cost":{"query":"n"},"limits":["4000000000/1h"]}`, true, 0},
	} {
		s := &hosttest.Steady{Proxy: hosttest.New()}
		s.With("u", "alice", ":path", "/v1/x/y?q=a&n=2", "c", "3", "cookie", "b=1; c=2")
		s.Values = map[string]string{"xds\x00route_name": "main", "request\x00protocol": "HTTP/2", "metadata": hosttest.Metadata(t, `{"envoy.filters.http.jwt_authn":{"p":{"sub":"alice"}}}`)}
		e := compileJSON(t, s, c.rules)
		e.Decide()
		var (
			v      *decide.Verdict
			writer respond.Fields
			fields []respond.Field
			body   []byte
		)
		decide := func() {
			v = e.Decide()
			fields = writer.Append(fields[:0], v)
			if !v.Allowed {
				body = respond.AppendBody(body[:0], v)
			}
		}
		decide()
		require.LessOrEqual(t, testing.AllocsPerRun(100, decide), c.most, c.name)
		require.Equal(t, c.allowed, v.Allowed, c.name)
	}
}
