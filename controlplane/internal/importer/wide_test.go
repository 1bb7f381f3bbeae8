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
			made, err := filter(text, importer.Options{})
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

// A rule whose broader bucket would take requests that are not its own is off.
func TestOffTogetherWithTheBroader(t *testing.T) {
	route := func(match, config string) string {
		return `{match: {` + match + `}, route: {cluster: c}, typed_per_filter_config: {local: {` + localType + `, stat_prefix: own, ` + on + `, ` + config + `}}}`
	}
	listener := func(routes string) string {
		return `{name: front, filter_chains: [{filters: [{typed_config: {http_filters: [{name: local, typed_config: {` + localType + `, stat_prefix: rest, ` + on + `, ` + bucket7 +
			`}}], route_config: {virtual_hosts: [{domains: ["*"], routes: [` + routes + `]}]}}}]}]}`
	}
	const slow = `token_bucket: {max_tokens: 5, tokens_per_fill: 5, fill_interval: 60s}`
	var many strings.Builder
	for i := range 101 {
		fmt.Fprintf(&many, "{match: {path: /r%d}, route: {cluster: c}}, ", i)
	}
	for name, tt := range map[string]struct {
		text string
		off  []string
	}{
		"more routes than a rule leaves out":       {listener(many.String() + route("prefix: /", slow)), []string{"rest", "own"}},
		"a descriptor by the query":                {limited("{key: query_match, value: q}", "{query_parameter_value_match: {descriptor_value: q, query_parameters: [{name: a, present_match: true}]}}"), []string{"others", "query_match_q"}},
		"a limit from metadata":                    {strings.Replace(limited("{key: remote_address}", "{remote_address: {}}"), "[{actions", "[{limit: {dynamic_metadata: {metadata_key: {key: k, path: [{key: p}]}}}, actions", 1), []string{"others", "remote_address"}},
		"a path with its query":                    {limited("{key: header_match, value: m}", "{header_value_match: {descriptor_value: m, headers: [{name: ':path', string_match: {prefix: '/a?'}}]}}"), []string{"others", "header_match_m"}},
		"an earlier route by the query":            {listener(route("prefix: /a, query_parameters: [{name: a, present_match: true}]", slow) + ", " + route("prefix: /a", slow)), []string{"own", "own-2"}},
		"the listener's, a route takes all":        {listener("{match: {path: /a}, route: {cluster: c}}, " + route("prefix: /", slow)), []string{"rest"}},
		"a value that no path of a policy can say": {limited("{key: path}], "+bucket7+"}, {entries: [{key: path, value: '/a?b'}", "{request_headers: {header_name: ':path', descriptor_key: path}}"), []string{"path", "path_/a?b", "others"}},
		"only such a value":                        {limited("{key: path, value: '/a?b'}", "{request_headers: {header_name: ':path', descriptor_key: path}}"), []string{"path_/a?b", "others"}},
		"a disabled filter":                        {strings.Replace(listener(""), "http_filters: [{", "http_filters: [{disabled: true, ", 1), []string{"rest"}},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := filter(tt.text, importer.Options{})
			require.NoError(t, err)
			var off []string
			for _, rule := range strings.Split(string(made.Policy), "- name: ")[1:] {
				if strings.Contains(rule, `mode: "off"`) {
					before, _, _ := strings.Cut(rule, "\n")
					off = append(off, before)
				}
			}
			require.ElementsMatch(t, tt.off, off, string(made.Policy))
		})
	}
	made, err := filter(listener(`{match: {prefix: /b}, route: {cluster: c}, typed_per_filter_config: {local: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}}`), importer.Options{})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "exempt:\n      - {paths: [/b*]}")
}
