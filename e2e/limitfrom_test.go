package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// saidPolicy has a limit that tokens say.
const saidPolicy = `
version: 1
headers: ietf
rules:
  - {name: rpm, match: {paths: [/rpm]}, key: [{jwt: {provider: payload, claim: sub}}], limits: [{requests: {jwt: {provider: payload, claim: rpm}, default: 2, max: 6}, per: ` + far + `}]}
`

// saidSteps are requests of tenants whose tokens say a limit, and what RateLimit says of it.
var saidSteps = []struct {
	want          int
	claims, field string
}{
	{allowed, `{"iss":"me","sub":"a","rpm":4}`, `"rpm";q=4;r=3`},
	{allowed, `{"iss":"me","sub":"a","rpm":4}`, `"rpm";q=4;r=2`},
	{allowed, `{"iss":"me","sub":"a","rpm":"5"}`, `"rpm";q=5;r=2`},
	{denied, `{"iss":"me","sub":"a"}`, `"rpm";q=2;r=0`},
	{denied, `{"iss":"me","sub":"a","rpm":3}`, `"rpm";q=3;r=0`},
	{allowed, `{"iss":"me","sub":"a","rpm":1000000}`, `"rpm";q=6;r=2`},
	{denied, `{"iss":"me","sub":"b","rpm":0}`, `"rpm";q=0;r=0`},
	{allowed, `{"iss":"me","sub":"b","rpm":-1}`, `"rpm";q=2;r=1`},
	{allowed, `{"iss":"me","sub":"b","rpm":2.5}`, `"rpm";q=2;r=0`},
	{denied, `{"iss":"me","sub":"b","rpm":[9]}`, `"rpm";q=2;r=0`},
}

// A token that jwt_authn has verified says its tenant's limit. A limit that clients could
// choose is refused.
func TestALimitThatTheTokenSays(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, d driver) {
		k := newTokens(t)
		p := d.listen(t, proxyOptions{policy: saidPolicy, edit: func(b []byte) []byte { return []byte(k.verified(t, b)) }})
		for i, s := range saidSteps {
			r, _ := p.get(t, "/rpm", "authorization", k.sign(t, s.claims))
			require.Equal(t, s.want, r.StatusCode, "step %d: %s", i, s.claims)
			policy, left := r.Header.Get("ratelimit-policy"), r.Header.Get("ratelimit")
			require.Equal(t, s.field, strings.Split(policy, ";w")[0]+strings.TrimPrefix(strings.Split(left, ";t")[0], `"rpm"`), "step %d: %s", i, s.claims)
		}
		require.Equal(t, 401, p.status(t, "/rpm", "authorization", newTokens(t).sign(t, `{"iss":"me","sub":"a","rpm":6}`)))
	})
	t.Run("sim", func(t *testing.T) {
		var in strings.Builder
		var want []int
		for _, s := range saidSteps {
			fmt.Fprintf(&in, `{"at_ms":1,"path":"/rpm","metadata":{"envoy.filters.http.jwt_authn":{"payload":%s}}}`+"\n", s.claims)
			want = append(want, s.want)
		}
		require.Equal(t, want, simulate(t, saidPolicy, in.String()))
		for _, lease := range []string{"off", "auto"} { // over two proxies, with the quota service
			cluster := strings.Replace(saidPolicy, "name: rpm,", "name: rpm, scope: cluster, lease: "+lease+",", 1)
			require.Equal(t, want, simulate(t, cluster, in.String(), "--proxies", "2"), lease)
		}
	})
	untrusted := strings.Replace(saidPolicy, "jwt: {provider: payload, claim: rpm}", "header: x-limit", 1)
	sluiceRefuses(t, "rules[0].limits[0].requests: a client can send any header:x-limit and so choose its limit", "validate", "-f", file(t, "policy.yaml", untrusted))
	sluiceOK(t, "validate", "-f", file(t, "policy.yaml", strings.Replace(untrusted, "header: x-limit", "header: x-limit, trusted: true", 1)))
}
