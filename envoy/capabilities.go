package envoy

import (
	"fmt"
	"strconv"
	"strings"

	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// callbacks are those that the filter may export.
const callbacks = `
	proxy_on_context_create proxy_on_vm_start proxy_on_configure proxy_on_tick
	proxy_on_request_headers proxy_on_response_headers proxy_on_delete
	proxy_on_grpc_receive proxy_on_grpc_close`

// DefaultCapabilities is the allow-list of the filter: its callbacks and all host
// functions of the oldest supported Envoy. To leave out those that it does not
// import would save nothing, and a newer binary in its place might need one. A VM
// keeps the list it was made with: a changed one takes effect with the next binary
// or vm_id.
func DefaultCapabilities() []string {
	return append(sim.HostFunctions(), strings.Fields(callbacks)...)
}

// NewestVersion is the newest Envoy that is supported.
const NewestVersion = "1.40"

// TakesVMCapabilities reports whether an Envoy of that version reads the allow-list
// from the VM's configuration. Since 1.40 Envoy warns of the plugin's own list; before
// it knows no other, and a static configuration with the new field stops it. An empty
// version may be any, and so does not.
func TakesVMCapabilities(version string) bool {
	major, minor, err := parseVersion(version)
	return err == nil && (major > 1 || major == 1 && minor >= 40)
}

func parseVersion(text string) (major, minor int, err error) {
	parts := strings.Split(strings.TrimPrefix(text, "v"), ".")
	if len(parts) == 2 || len(parts) == 3 {
		major, err = strconv.Atoi(parts[0])
		if err == nil {
			minor, err = strconv.Atoi(parts[1])
		}
		if err == nil && major >= 0 && minor >= 0 {
			return major, minor, nil
		}
	}
	return 0, 0, fmt.Errorf("version %q of Envoy: want one such as %s", text, NewestVersion)
}

// restrict puts the allow-list where the plugin's Envoy reads it.
func (p Plugin) restrict(config *wasmv3.PluginConfig) {
	names := p.Capabilities
	if names == nil {
		names = DefaultCapabilities()
	}
	if len(names) == 0 {
		return
	}
	allowed := make(map[string]*wasmv3.SanitizationConfig, len(names))
	for _, name := range names {
		allowed[name] = &wasmv3.SanitizationConfig{}
	}
	list := &wasmv3.CapabilityRestrictionConfig{AllowedCapabilities: allowed}
	if TakesVMCapabilities(p.Envoy) {
		config.GetVmConfig().CapabilityRestrictionConfig = list
		return
	}
	//nolint:staticcheck // deprecated since 1.40, and the only one before
	config.CapabilityRestrictionConfig = list
}
