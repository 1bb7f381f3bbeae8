package importer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

// on enables a filter for all requests.
const on = `filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}, rate_limited_as_resource_exhausted: true`

// bucket7 is a bucket of seven a minute.
const bucket7 = `token_bucket: {max_tokens: 7, tokens_per_fill: 7, fill_interval: 60s}`

// limited is a filter with a default bucket of 30 for other requests only, and a
// descriptor that the actions make.
func limited(entries, actions string) string {
	return `{stat_prefix: others, ` + on + `, always_consume_default_token_bucket: false, max_dynamic_descriptors: 10,
    token_bucket: {max_tokens: 30, tokens_per_fill: 30, fill_interval: 60s},
    descriptors: [{entries: [` + entries + `], ` + bucket7 + `}], rate_limits: [{actions: [` + actions + `]}]}`
}

// near makes a value of the client's address, for the clients of a network.
func near(key, value string) string {
	return `{remote_address_match: {address_matcher: {ranges: [{address_prefix: 10.9.0.0, prefix_len: 16}]}, descriptor_key: ` + key + `, descriptor_value: "` + value + `"}}`
}

const address = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"

// Nobody is denied that Envoy would let through: neither newcomers where Envoy
// forgets old values, nor by the bucket that is for others.
func TestDeniesNobodyElse(t *testing.T) {
	wasm := buildtest.Wasm(t)
	for name, text := range map[string]string{
		"each address":         limited("{key: remote_address}", "{remote_address: {}}"),
		"of a network":         limited("{key: who}", near("who", address)),
		"twice":                limited("{key: net, value: n}, {key: who}", near("net", "n")+", "+near("who", address)),
		"by a generic key":     limited("{key: who}", `{generic_key: {descriptor_key: who, descriptor_value: "`+address+`"}}`),
		"guessed":              strings.Replace(limited("{key: rule-0-remote-address}", ""), ", rate_limits: [{actions: []}]", "", 1),
		"an unknown formatter": limited("{key: who}", near("who", "%CEL(request.id)%")),
	} {
		t.Run(name, func(t *testing.T) {
			made, err := importer.LocalRatelimit(importer.File{Name: "f.yaml", Text: []byte(text)}, importer.Options{})
			require.NoError(t, err)
			var requests bytes.Buffer
			for i := range 300 { // two of each of 150 clients
				fmt.Fprintf(&requests, "{\"at_ms\": %d, \"client_ip\": \"10.9.0.%d\"}\n", 1000+i, i%150)
			}
			for i := range 9 { // nine of one client, of which seven may pass
				fmt.Fprintf(&requests, "{\"at_ms\": %d, \"client_ip\": \"10.9.1.1\"}\n", 2000+i)
			}
			allowed := decide(t, wasm, made.Policy, &requests)
			require.NotContains(t, allowed[:300], false, string(made.Policy))
			if name != "an unknown formatter" {
				require.Equal(t, []bool{true, true, true, true, true, true, true, false, false}, allowed[300:])
			}
		})
	}
}

// decide says which requests a policy allows.
func decide(t *testing.T, wasm, policy []byte, requests *bytes.Buffer) (allowed []bool) {
	t.Helper()
	for lines := simulated(t, wasm, policy, requests); lines.Scan(); {
		var answer struct{ Allowed bool }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &answer))
		allowed = append(allowed, answer.Allowed)
	}
	return allowed
}
