package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyProperty(t *testing.T) { everyProxy(t, rows("properties")) }

// tokens signs JSON Web Tokens with its key.
type tokens struct{ key *ecdsa.PrivateKey }

func newTokens(t *testing.T) tokens {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return tokens{key}
}

func base64URL(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// keys returns the JSON Web Key Set that verifies the tokens.
func (k tokens) keys(t *testing.T) string {
	public, err := k.key.PublicKey.ECDH()
	require.NoError(t, err)
	point := public.Bytes() // 4, x, y
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k","x":"%s","y":"%s"}]}`, base64URL(point[1:33]), base64URL(point[33:]))
}

func (k tokens) sign(t *testing.T, claims string) string {
	text := base64URL([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + base64URL([]byte(claims))
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, k.key, sum[:])
	require.NoError(t, err)
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return "Bearer " + text + "." + base64URL(signature)
}

// verified returns a bootstrap with a jwt_authn that verifies the tokens of requests that
// have one, before the filter.
func (k tokens) verified(t *testing.T, bootstrap []byte) string {
	filter := fmt.Sprintf(`          http_filters:
          - name: envoy.filters.http.jwt_authn
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
              providers:
                p: {issuer: me, payload_in_metadata: payload, local_jwks: {inline_string: %q}}
              rules:
              - match: {prefix: /}
                requires: {requires_any: {requirements: [{provider_name: p}, {allow_missing: {}}]}}`, k.keys(t))
	return strings.Replace(string(bootstrap), "          http_filters:", filter, 1)
}

// jwtPolicy has a key of each type of claim.
const jwtPolicy = `
version: 1
headers: ietf
rules:
  - {name: sub, key: [{jwt: {provider: payload, claim: sub}}], limits: [1/` + far + `]}
  - {name: number, key: [{jwt: {provider: payload, claim: number}}], limits: [1/` + far + `]}
  - {name: flag, key: [{jwt: {provider: payload, claim: flag}}], limits: [1/` + far + `]}
  - {name: nested, key: [{jwt: {provider: payload, claim: [org, "a.b", id]}}], limits: [1/` + far + `]}
  - {name: item, key: [{jwt: {provider: payload, claim: [groups, "1"]}}], limits: [1/` + far + `]}
  - {name: route, match: {paths: [/route]}, key: [route], limits: [1/` + far + `]}
  - {name: route by attribute, match: {paths: [/attribute]}, key: [{property: [xds, route_name]}], limits: [1/` + far + `]}
`

// jwtSteps are the claims of requests and their statuses. A claim has the name of the
// rule that counts it.
var jwtSteps = []struct {
	want   int
	claims string
}{
	{allowed, `{"iss":"me","sub":"alice123"}`},
	{denied, `{"iss":"me","sub":"alice123"}`},
	{allowed, `{"iss":"me","sub":"42"}`},
	{allowed, `{"iss":"me","number":42}`},
	{denied, `{"iss":"me","number":42.0}`},
	{denied, `{"iss":"me","number":"42"}`},
	{allowed, `{"iss":"me","number":9007199254740993}`},
	{denied, `{"iss":"me","number":9007199254740992}`}, // the same double
	{allowed, `{"iss":"me","number":-0.5}`},
	{allowed, `{"iss":"me","flag":true}`},
	{denied, `{"iss":"me","flag":true}`},
	{allowed, `{"iss":"me","flag":false}`},
	{allowed, `{"iss":"me","flag":null}`},
	{allowed, `{"iss":"me","flag":null}`},
	{allowed, `{"iss":"me","sub":""}`},
	{denied, `{"iss":"me","sub":""}`},
	{allowed, `{"iss":"me","org":{"a.b":{"id":"x"}}}`},
	{denied, `{"iss":"me","org":{"a.b":{"id":"x"}},"sub":"new"}`},
	{allowed, `{"iss":"me","org":{"a":{"b":{"id":"x"}}}}`},
	{allowed, `{"iss":"me","org":{"a.b":{"id":["x"]}}}`},
	{allowed, `{"iss":"me","org":{"a.b":{"id":["x"]}}}`},
	{allowed, `{"iss":"me","groups":["a","b"]}`},
	{denied, `{"iss":"me","groups":["c","b"]}`},
	{allowed, `{"iss":"me","groups":["b"]}`},
	{allowed, `{"iss":"me","number":{"x":1}}`},
	{allowed, `{"iss":"me"}`},
}

func TestKeyJWTAndRoute(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, d driver) {
		k := newTokens(t)
		p := d.listen(t, proxyOptions{policy: jwtPolicy, edit: func(b []byte) []byte {
			text := strings.Replace(k.verified(t, b), "- match: {prefix: /}\n                route:", "- {match: {path: /named}, route: {cluster: upstream}, name: named}\n"+
				"              - {match: {path: /attribute}, route: {cluster: upstream}, name: by attribute}\n"+
				"              - {match: {path: /route, headers: [{name: named, present_match: true}]}, route: {cluster: upstream}, name: everything}\n"+
				"              - match: {prefix: /}\n                route:", 1)
			return []byte(text)
		}})
		for i, s := range jwtSteps {
			require.Equal(t, s.want, p.status(t, "/", "authorization", k.sign(t, s.claims)), "step %d: %s", i, s.claims)
		}
		require.Equal(t, 401, p.status(t, "/", "authorization", newTokens(t).sign(t, `{"iss":"me","sub":"forged"}`)))
		p.walk(t, []step{
			{allowed, "/", nil},
			{allowed, "/", nil},
			{allowed, "/route", []string{"named", "1"}},
			{denied, "/route", []string{"named", "1"}},
			{allowed, "/route", nil},
			{allowed, "/route", nil},
			{allowed, "/attribute", nil},
			{denied, "/attribute", nil},
		})
	})
	t.Run("sim", func(t *testing.T) {
		var in strings.Builder
		for _, s := range jwtSteps {
			fmt.Fprintf(&in, `{"at_ms":1,"metadata":{"envoy.filters.http.jwt_authn":{"payload":%s}}}`+"\n", s.claims)
		}
		for _, route := range []string{"everything", "everything", ""} {
			fmt.Fprintf(&in, `{"at_ms":1,"path":"/route","route":%q}`+"\n", route)
		}
		var want []int
		for _, s := range jwtSteps {
			want = append(want, s.want)
		}
		require.Equal(t, append(want, allowed, denied, allowed), simulate(t, jwtPolicy, in.String()))
	})
}

// simulate runs `sluice simulate` with these requests, one a line, and returns their
// statuses.
func simulate(t *testing.T, policy, requests string, flags ...string) (statuses []int) {
	args := []string{"simulate", "--wasm", built.filter, "-f", file(t, "policy.yaml", policy), "-r", file(t, "requests.jsonl", requests)}
	out := sluiceOK(t, append(args, flags...)...)
	for line := range strings.Lines(out) {
		statuses = append(statuses, decoded[struct{ Status int }](t, line).Status)
	}
	return statuses
}
