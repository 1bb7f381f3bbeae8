package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-ratelimit/sluice/envoy"
)

const filterTypes = "type.googleapis.com/envoy.extensions.filters.http."

// localBucket has more tokens than a run takes.
const localBucket = `stat_prefix: local,
	token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 86400s},
	filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}},
	filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}`

// perHeader tells Envoy's own limiters who asks.
const perHeader = `rate_limits: [{actions: [{request_headers: {header_name: ` + keyHeader + `, descriptor_key: user}}]}]`

func localOneBucket(*bench) (string, error) {
	return `{name: local, typed_config: {"@type": ` + filterTypes + `local_ratelimit.v3.LocalRateLimit, ` + localBucket + `}},`, nil
}

func localDynamic(*bench) (string, error) {
	return `{name: local, typed_config: {"@type": ` + filterTypes + `local_ratelimit.v3.LocalRateLimit, ` + localBucket + `,
		always_consume_default_token_bucket: false, max_dynamic_descriptors: 65536, ` + perHeader + `,
		descriptors: [{entries: [{key: user}], token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 86400s}}]}},`, nil
}

func luaHeader(*bench) (string, error) {
	return `{name: lua, typed_config: {"@type": ` + filterTypes + `lua.v3.Lua,
		default_source_code: {inline_string: "function envoy_on_request(handle)\n  local user = handle:headers():get('` + keyHeader + `')\nend\n"}}},`, nil
}

func rateLimit(*bench) (string, error) {
	return `{name: ratelimit, typed_config: {"@type": ` + filterTypes + `ratelimit.v3.RateLimit,
		domain: bench, failure_mode_deny: true, timeout: 1s,
		rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: ratelimit}}}}},`, nil
}

// rateLimitCluster leads to the rate limit service at a port.
func rateLimitCluster(port int) string {
	return fmt.Sprintf(`{name: ratelimit, type: STATIC,
		typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
			"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http2_protocol_options: {}}}},
		load_assignment: {cluster_name: ratelimit, endpoints: [{lb_endpoints: [
			{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]}},`, port)
}

// floorFilter is the module that floor puts together.
func (b *bench) floorFilter() (string, error) {
	plugin, err := b.floorPlugin()
	if err != nil {
		return "", err
	}
	return wasmFilter(plugin)
}

func (b *bench) floorPlugin() (envoy.Plugin, error) {
	path := filepath.Join(b.dir, "floor.wasm")
	err := os.WriteFile(path, floor(), 0o600)
	return envoy.Plugin{Name: "floor", VMID: "floor", Wasm: path, Policy: []byte("{}"), Capabilities: []string{}}, err
}

// bareFilter is the module of testdata/bare.
func (b *bench) bareFilter() (string, error) {
	plugin, err := b.barePlugin()
	if err != nil {
		return "", err
	}
	return wasmFilter(plugin)
}

func (b *bench) barePlugin() (envoy.Plugin, error) {
	path := filepath.Join(b.dir, "bare.wasm")
	plugin := envoy.Plugin{Name: "bare", VMID: "bare", Wasm: path, Policy: []byte("{}"), Capabilities: []string{}}
	if _, err := os.Stat(path); err == nil {
		return plugin, nil
	}
	cmd := exec.CommandContext(context.Background(), "go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", path,
		"github.com/sluice-ratelimit/sluice/build/bench/testdata/bare")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := cmd.CombinedOutput(); err != nil {
		return plugin, fmt.Errorf("build the bare module: %w\n%s", err, out)
	}
	return plugin, nil
}

// ours is the filter at a path with a policy. Builds to be compared live in
// one Envoy and must not share counters: each has a vm_id of its own.
func ours(path, vmID, policy string) (string, error) {
	return wasmFilter(envoy.Plugin{Wasm: path, VMID: vmID, Policy: []byte(policy)})
}

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

// site is where a case is measured.
func (b *bench) site(s subject) (site, error) {
	at := site{Direct: s.direct, Balanced: s.workers > 1, Upstream: b.upstream}
	if s.service {
		at.Clusters, at.Route = rateLimitCluster(b.service.port), ", "+perHeader
	}
	var err error
	switch {
	case s.policy != "":
		if b.against != "" {
			if at.Base, err = ours(b.against, "against", s.policy); err != nil {
				return at, err
			}
		}
		at.Test, err = ours(b.wasm, "sluice", s.policy)
	case s.filter != nil:
		at.Test, err = s.filter(b)
	}
	return at, err
}
