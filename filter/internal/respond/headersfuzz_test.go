package respond_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// readsAll is a rule for one honest client, and rules that read all of a
// request that a policy can.
const readsAll = `
{"name":"honest","match":{"headers":{"honest":"yes"}},"key":[{"header":"honest"}],"limits":["1000000/366d"]},
{"name":"matches","match":{"hosts":["*.example.com","[::1]"],"paths":["/v1/*","=/a*","~/(u|v)*[0-9]+"],"methods":["GET"],
 "headers":{"u":"~(a|b)*c?","c":"*-x"}},"exempt":[{"client_ips":["10.0.0.0/8"]}],"limits":["5/1s"]},
{"name":"keys","match":{"headers":{"honest":"!"}},"key":[{"header":"u"},{"query":"q"},{"cookie":"s"},{"client_ip":{}},"host","method",{"path":"full"},{"path":{"segment":2}}],
 "missing_key":"share","capacity":64,"cost":{"header":"c","max":5},"limits":["9/1h",{"requests":5,"per":"1m","algorithm":"sliding_window_log"}],
 "overrides":[{"key":["~(a|b|[^a-z])*","*-x","=*","*","*","*","/v1*","*"],"limits":["7/1h"]},{"key":["free","*","*","*","*","*","*","*"],"unlimited":true}]},
{"name":"first","match":{"headers":{"honest":"!"}},"key":[{"first_of":[{"query":"k"},{"cookie":"k"},{"header":"u"}]}],"missing_key":"deny","capacity":64,"count_denied":true,
 "cost":{"query":"n","min":0,"max":9},"limits":["9/1h"]}`

// FuzzHeaders decides requests of any bytes and asks that each changes nothing
// but its own verdict.
func FuzzHeaders(f *testing.F) {
	f.Add("/v1/x?q=1&k=%41&n=3", "api.example.com:443", "GET", "a", "5", "s=1; k=\"2\"", "192.0.2.7:4711")
	f.Add("/u7", "[::1]", "GET", "abc", "1-x", "", "[2001:db8::1]:9")
	for i, text := range hosttest.Hostile {
		other := hosttest.Hostile[(i*7+3)%len(hosttest.Hostile)]
		f.Add(text, other, "GET", text, other, text, "10.0.0.1:1")
		f.Add("/v1/"+text+"?q="+other+"&n="+text, text, other, other, text, "s="+text+"; k="+other, other)
	}
	f.Fuzz(func(t *testing.T, path, host, method, u, c, cookie, client string) {
		p := hosttest.New()
		p.Clock = 1_700_000_000_123_456_789
		e := compileJSON(t, p, readsAll)
		p.With("honest", "yes", "u", "-", "c", "-")
		require.True(t, e.Decide().Allowed)
		honest := map[string]string{}
		for key, value := range hosttest.Pages(p.Store) {
			honest[key] = string(value.Value)
		}
		require.Len(t, honest, 1)

		p.With(":path", path, ":authority", host, ":method", method, "u", u, "u", c, "c", c, "cookie", cookie)
		p.Client = client
		for range 3 {
			v := e.Decide()
			require.True(t, json.Valid(respond.AppendReport(nil, v)), "%q", respond.AppendReport(nil, v))
			for _, field := range appendFields(policy.HeadersBoth, v) {
				require.False(t, strings.ContainsAny(field.Value, "\r\n\x00"), "%s: %q", field.Name, field.Value)
			}
			for key, value := range honest {
				require.Equal(t, value, string(p.Store[key].Value))
			}
			require.LessOrEqual(t, len(hosttest.Pages(p.Store)), 4, "one more for each other rule")
		}
		p.With("honest", "yes", "u", "-", "c", "-")
		p.Client = "192.0.2.7:4711"
		v := e.Decide()
		require.True(t, v.Allowed)
		window, usage := v.Subjects[0].Window(0)
		require.EqualValues(t, 1_000_000-2, window.Remaining(usage, v.Now))
	})
}
