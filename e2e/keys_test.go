package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
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
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k","x":"%s","y":"%s"}]}`,
		base64URL(point[1:33]), base64URL(point[33:]))
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
func (k tokens) verified(t *testing.T, bootstrap []byte) []byte {
	filter := fmt.Sprintf(`          http_filters:
          - name: envoy.filters.http.jwt_authn
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
              providers:
                p: {issuer: me, payload_in_metadata: payload, local_jwks: {inline_string: %q}}
              rules:
              - match: {prefix: /}
                requires: {requires_any: {requirements: [{provider_name: p}, {allow_missing: {}}]}}`, k.keys(t))
	return replacing("          http_filters:", filter)(bootstrap)
}

func TestKeyJWTAndRoute(t *testing.T) {
	eachEnvoy(t, rows("tokens"))
	t.Run("sim", func(t *testing.T) { simulated(t, "tokens", "", "") })
}

// A limit that clients could choose is refused.
func TestALimitThatTheTokenSays(t *testing.T) {
	eachEnvoy(t, rows("said"))
	t.Run("sim", func(t *testing.T) {
		simulated(t, "said", "", "")
		for _, lease := range []string{"off", "auto"} { // over two proxies, with the quota service
			simulated(t, "said", "name: rpm,", "name: rpm, scope: cluster, lease: "+lease+",", "--proxies", "2")
		}
	})
	said := func(limit string) []string {
		policy := "version: 1\nrules: [{name: rpm, key: [{jwt: {provider: payload, claim: sub}}], limits: [{requests: {" +
			limit + ", default: 2, max: 6}, per: 1h}]}]\n"
		return []string{"validate", "-f", file(t, "policy.yaml", policy)}
	}
	sluiceRefuses(t, "rules[0].limits[0].requests: a client can send any header:x-limit and so choose its limit",
		said("header: x-limit")...)
	sluiceOK(t, said("header: x-limit, trusted: true")...)
}

// simulated does a scenario of rows by `sluice simulate`, with another text in its policy. Claims are
// metadata, as jwt_authn writes it.
func simulated(t *testing.T, name, old, with string, flags ...string) {
	var policy string
	var in strings.Builder
	var want, got []string
	for _, f := range archiveOf(t, name) {
		switch text := strings.ReplaceAll(string(f.Data), "FAR", far); f.Name {
		case "listen tokens":
			policy = replaced(t, text, old, with)
		case "steps", "steps simulate":
			for line := range strings.Lines(text) {
				request, sees, _ := strings.Cut(line, " → ")
				path, headers := requestOf(request)
				fields := map[string]any{"at_ms": 1, "path": path}
				if len(headers) == 2 && headers[0] == ":route" {
					fields["route"] = headers[1]
				} else if len(headers) == 2 {
					fields["metadata"] = object{"envoy.filters.http.jwt_authn": object{"payload": json.RawMessage(headers[1])}}
				}
				require.NoError(t, json.NewEncoder(&in).Encode(fields))
				want = append(want, strings.Fields(sees)[0])
			}
		}
	}
	args := []string{"simulate", "--wasm", built.filter, "-f", file(t, "policy.yaml", policy), "-r",
		file(t, "requests.jsonl", in.String())}
	for line := range strings.Lines(sluiceOK(t, append(args, flags...)...)) {
		got = append(got, strconv.Itoa(decoded[struct{ Status int }](t, line).Status))
	}
	require.Equal(t, want, got)
}
