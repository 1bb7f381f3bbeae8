package envoy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// callbacks are all that the filter may export.
const callbacks = `
	proxy_on_context_create proxy_on_vm_start proxy_on_configure proxy_on_tick
	proxy_on_request_headers proxy_on_response_headers proxy_on_response_body
	proxy_on_log proxy_on_delete proxy_on_grpc_receive proxy_on_grpc_close`

// DefaultCapabilities is the allow-list of the filter: its callbacks and all host functions of
// the oldest supported Envoy. It would save nothing to leave out those that the filter does not
// import, and a newer filter might need one.
func DefaultCapabilities() []string {
	return append(sim.HostFunctions(), strings.Fields(callbacks)...)
}

// Capabilities is DefaultCapabilities without the callbacks that the policy does not need:
// each costs a call into the filter for every request, and that of the body for every chunk.
// A policy that cannot be read needs all.
func Capabilities(policyJSON []byte) []string {
	n := needsOf(policyJSON)
	return slices.DeleteFunc(DefaultCapabilities(), func(name string) bool { return !n.call(name) })
}

// needs say what a policy needs callbacks for. lacksCallback in filter/internal/host/plugin.go
// refuses a policy if one of these callbacks is left out, so a change here is one there too.
type needs struct {
	fields  bool // responses get fields
	answers bool // a rule waits for the end of answers
	begins  bool // a rule has to know whether an answer begins
	bodies  bool // a rule reads the bodies of answers
}

func needsOf(policyJSON []byte) (n needs) {
	var p struct {
		Headers policy.Headers
		Rules   []struct {
			Mode      policy.Mode
			Algorithm string
			Settle    *struct{ To any }
		}
	}
	if json.Unmarshal(policyJSON, &p) != nil {
		return needs{true, true, true, true}
	}
	n.fields = p.Headers != "" && p.Headers != policy.HeadersNone
	for _, r := range p.Rules {
		if r.Mode == policy.ModeOff {
			continue
		}
		n.answers = n.answers || r.Settle != nil || r.Algorithm == policy.AlgorithmName(limit.Concurrency)
		if r.Settle != nil {
			n.begins = true
			to, _ := r.Settle.To.(string)
			n.bodies = n.bodies || policy.Settled(to).Tokens()
		}
	}
	return n
}

// call reports whether the policy needs a callback.
func (n needs) call(name string) bool {
	switch name {
	case "proxy_on_response_headers":
		return n.fields || n.begins
	case "proxy_on_log":
		return n.answers
	case "proxy_on_response_body":
		return n.bodies
	default:
		return true
	}
}

// NewestVersion is the newest Envoy that is supported.
const NewestVersion = "1.40"

// TakesVMCapabilities reports whether an Envoy of that version reads the allow-list from the
// VM's configuration. Since 1.40 Envoy does, and warns of a list in the plugin's. An older Envoy
// knows only that, and refuses to start with the new field. An empty version may be an older
// one.
func TakesVMCapabilities(version string) bool {
	major, minor, err := parseVersion(version)
	return err == nil && (major > 1 || major == 1 && minor >= 40)
}

// mustStartV8Early reports whether an Envoy of that version crashes if its workers start before V8 does. On a CPU with
// memory protection keys, V8's tables can be read only by threads that descend from the one that started V8. 1.36 and
// 1.37 crash. An empty version may be one of these.
func mustStartV8Early(version string) bool {
	major, minor, err := parseVersion(version)
	return err != nil || major == 1 && minor < 38
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

// restrict puts the allow-list where the plugin's Envoy reads it, and the names of the callbacks
// that are left out into the VM's configuration. A VM keeps the list that it was made with. Envoy
// makes a new VM only for another configuration, not for another list: the names make it another
// one. The filter reads them too.
func (p Plugin) restrict(config *wasmv3.PluginConfig) error {
	names := p.Capabilities
	if names == nil {
		names = Capabilities(p.Policy)
	}
	allowed := make(map[string]*wasmv3.SanitizationConfig, len(names))
	for _, name := range names {
		allowed[name] = &wasmv3.SanitizationConfig{}
	}
	list := &wasmv3.CapabilityRestrictionConfig{AllowedCapabilities: allowed}
	if TakesVMCapabilities(p.Envoy) {
		config.GetVmConfig().CapabilityRestrictionConfig = list
	} else {
		//nolint:staticcheck // deprecated since 1.40; older releases know no other
		config.CapabilityRestrictionConfig = list
	}
	without := slices.DeleteFunc(strings.Fields(callbacks), func(name string) bool { return allowed[name] != nil })
	if len(without) == 0 {
		return nil
	}
	packed, err := marshal(wrapperspb.String("without " + strings.Join(without, " ")))
	config.GetVmConfig().Configuration = packed
	return err
}
