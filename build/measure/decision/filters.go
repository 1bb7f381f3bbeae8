package decision

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-ratelimit/sluice/envoy"
)

const (
	filterTypes = "type.googleapis.com/envoy.extensions.filters.http."
	// endless is a bucket with more tokens than a run takes.
	endless = `token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 86400s}`
	// perHeader tells Envoy's own limiters which client asks.
	perHeader = `rate_limits: [{actions: [{request_headers: {header_name: ` + keyHeader + `, descriptor_key: user}}]}]`

	localStart = `{name: local, typed_config: {"@type": ` + filterTypes + `local_ratelimit.v3.LocalRateLimit, stat_prefix: local, ` + endless + `,
		filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}},
		filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}`
	localOneBucket = localStart + `}},`
	localDynamic   = localStart + `,
		always_consume_default_token_bucket: false, max_dynamic_descriptors: 65536, ` + perHeader + `,
		descriptors: [{entries: [{key: user}], ` + endless + `}]}},`

	luaHeader = `{name: lua, typed_config: {"@type": ` + filterTypes + `lua.v3.Lua,
		default_source_code: {inline_string: "function envoy_on_request(handle)\n  local user = handle:headers():get('` + keyHeader + `')\nend\n"}}},`

	rateLimit = `{name: ratelimit, typed_config: {"@type": ` + filterTypes + `ratelimit.v3.RateLimit,
		domain: bench, failure_mode_deny: true, timeout: 1s,
		rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: ratelimit}}}}},`
	// serviceCluster leads to a gRPC service, by the cluster's name and the port.
	serviceCluster = `{name: %[1]s, type: STATIC,
		typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
			"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http2_protocol_options: {}}}},
		load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [
			{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}}}]}]}},`
)

// floor is a module that makes the four host calls that a limit needs, those that add the
// fields of a policy, and nothing else.
//
//go:embed testdata/floor.wasm
var floor []byte

// floorPlugin writes the module into the folder of the run. Of the policy it takes only
// whether responses get fields.
func (b *bench) floorPlugin(policy string) (envoy.Plugin, error) {
	file := filepath.Join(b.dir, "floor.wasm")
	plugin := envoy.Plugin{Name: "floor", VMID: "floor", Wasm: file, Policy: []byte(policy)}
	return plugin, os.WriteFile(file, floor, 0o600)
}

// wasmFilter is a plugin as an HTTP filter.
func wasmFilter(p envoy.Plugin) (string, error) {
	config, err := p.Any()
	if err != nil {
		return "", err
	}
	text, err := protojson.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("marshal filter: %w", err)
	}
	return fmt.Sprintf("{name: wasm, typed_config: %s},", text), nil
}

// filters are those of the two listeners of a case. Two builds of our filter in one
// Envoy must not share counters: each has a vm_id of its own.
func (b *bench) filters(s subject) (base, test string, err error) {
	if s.floor {
		p, err := b.floorPlugin(s.policy)
		if err != nil {
			return "", "", err
		}
		test, err = wasmFilter(p)
		return "", test, err
	}
	if s.policy == "" {
		return "", s.filter, nil
	}
	if s.base != "" {
		if base, err = wasmFilter(envoy.Plugin{Wasm: b.wasm, VMID: "base", Policy: []byte(s.base)}); err != nil {
			return "", "", err
		}
	}
	if b.against != "" {
		if base, err = wasmFilter(envoy.Plugin{Wasm: b.against, VMID: "against", Policy: []byte(s.policy)}); err != nil {
			return "", "", err
		}
	}
	test, err = wasmFilter(envoy.Plugin{Wasm: b.wasm, VMID: "sluice", Policy: []byte(s.policy)})
	return base, test, err
}

type listener struct{ Name, Filters string }

// bootstrap is an Envoy with two listeners that differ in their filters alone.
func (b *bench) bootstrap(s subject) ([]byte, error) {
	base, test, err := b.filters(s)
	if err != nil {
		return nil, err
	}
	site := map[string]any{
		"Listeners": []listener{{"base", base}, {"test", test}},
		"Direct":    s.direct, "Balanced": s.workers > 1, "Upstream": b.upstream, "Route": "", "Clusters": "",
	}
	if s.service {
		site["Route"], site["Clusters"] = ", "+perHeader, fmt.Sprintf(serviceCluster, "ratelimit", b.service.port)
	}
	return writeSite(site)
}

func writeSite(site map[string]any) ([]byte, error) {
	var out bytes.Buffer
	if err := siteTemplate.Execute(&out, site); err != nil {
		return nil, fmt.Errorf("write bootstrap: %w", err)
	}
	return out.Bytes(), nil
}

// Statistics are flushed once in a run at most: that work would fall on one turn
// or another.
var siteTemplate = template.Must(template.New("site").Parse(`
node: {id: bench, cluster: bench}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
stats_flush_interval: 299s
static_resources:
  listeners:
{{- range .Listeners }}
  - name: {{ .Name }}
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
{{- if $.Balanced }}
    connection_balance_config: {exact_balance: {}}
{{- end }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {{ .Name }}
          use_remote_address: true
          normalize_path: true
          merge_slashes: true
          path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT
          route_config:
            virtual_hosts:
            - name: upstream
              domains: ["*"]
              routes:
{{- if $.Direct }}
              - {match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "hello\n"}} }
{{- else }}
              - {match: {prefix: /}, route: {cluster: upstream {{ $.Route }} } }
{{- end }}
          http_filters: [
            {{ .Filters }}
            {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
{{- end }}
  clusters: [
    {{ .Clusters }}
    {name: upstream, type: STATIC, load_assignment: {cluster_name: upstream, endpoints: [{lb_endpoints: [
      {endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{ .Upstream }} } } } }]}]}}]
`))
