//go:build linux

package decision

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-ratelimit/sluice/envoy"
)

const (
	filterTypes = "type.googleapis.com/envoy.extensions.filters.http."
	// endless is a bucket with more tokens than a run takes.
	endless    = `token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 86400s}`
	localStart = `{name: local, typed_config: {"@type": ` + filterTypes +
		`local_ratelimit.v3.LocalRateLimit, stat_prefix: local, ` + endless + `,
		filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}},
		filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}`
	localOneBucket = localStart + `}},`
	luaHeader      = `{name: lua, typed_config: {"@type": ` + filterTypes + `lua.v3.Lua,
		default_source_code: {inline_string: "function envoy_on_request(handle)\n  local user = handle:headers():get('` +
		keyHeader + `')\nend\n"}}},`

	rateLimit = `{name: ratelimit, typed_config: {"@type": ` + filterTypes + `ratelimit.v3.RateLimit,
		domain: bench, failure_mode_deny: true, timeout: 1s,
		rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: ratelimit}}}}},`
	// serviceCluster leads to a gRPC service, by the cluster's name and the port.
	serviceCluster = `{name: %[1]s, type: STATIC,
		typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
			"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
			explicit_http_config: {http2_protocol_options: {}}}},
		load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [
			{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}}}]}]}},`
)

var localDynamic = localStart + `,
		always_consume_default_token_bucket: false, max_dynamic_descriptors: 65536, ` + perHeader("user") + `,
		descriptors: [{entries: [{key: user}], ` + endless + `}]}},`

// perHeader tells Envoy's own limiters which client asks, in descriptors with these keys.
func perHeader(keys string) string {
	var list []string
	for key := range strings.SplitSeq(keys, ",") {
		list = append(list, `{actions: [{request_headers: {header_name: `+keyHeader+`, descriptor_key: `+key+`}}]}`)
	}
	return "rate_limits: [" + strings.Join(list, ", ") + "]"
}

// floor is a module that makes the four host calls that a limit needs, those that add the
// fields of a policy, and nothing else.
//
//go:embed testdata/floor.wasm
var floor []byte

// wasmFilter is a module with a policy as an HTTP filter, "" = the floor's. Two builds of our filter in one
// Envoy must not share counters: each has a vm_id of its own.
func wasmFilter(t testing.TB, vmID, wasm, policy string) string {
	if wasm == "" {
		wasm = filepath.Join(t.TempDir(), "floor.wasm")
		require.NoError(t, os.WriteFile(wasm, floor, 0o600))
	}
	config, err := envoy.Plugin{VMID: vmID, Wasm: wasm, Policy: []byte(policy)}.Any()
	require.NoError(t, err)
	text, err := protojson.Marshal(config)
	require.NoError(t, err)
	return fmt.Sprintf("{name: wasm, typed_config: %s},", text)
}

// The configuration of an Envoy. Statistics are flushed once in a run at most: that work would
// fall on one turn or another.
const (
	bootstrap = `
node: {id: bench, cluster: bench}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
stats_flush_interval: 299s
static_resources:
  listeners: [%s]
  clusters: [%s
    {name: upstream, type: STATIC, load_assignment: {cluster_name: upstream, endpoints: [{lb_endpoints: [
      {endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]}}]
`
	listener = `
    {%[1]s name: %[2]s, address: {socket_address: {address: 127.0.0.1, port_value: 0}},
      filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: %[2]s, use_remote_address: true,
      normalize_path: true, merge_slashes: true, path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT,
      route_config: {virtual_hosts: [{name: upstream, domains: ["*"], routes: [{match: {prefix: /}, %[3]s}]}]},
      http_filters: [%[4]s
        {name: router, typed_config: {
          "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}`
	balanced = "connection_balance_config: {exact_balance: {}}, "
	direct   = `direct_response: {status: 200, body: {inline_string: "hello\n"}}`
)

// bootstrap is an Envoy whose listeners differ in their filters alone.
func (b *bench) bootstrap(s site, clusters string) string {
	route := "route: {cluster: upstream}"
	balance := ""
	listeners := ""
	switch {
	case s.direct:
		route = direct
	case s.limiter != "":
		route = "route: {cluster: upstream, " + perHeader(s.limiter) + "}"
	}
	if s.workers > 1 {
		balance = balanced
	}
	for _, side := range s.sides {
		listeners += fmt.Sprintf(listener, balance, side.name, route, side.filter) + ","
	}
	return fmt.Sprintf(bootstrap, listeners, clusters, b.upstream)
}
