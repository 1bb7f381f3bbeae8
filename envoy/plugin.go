// Package envoy writes what Envoy reads: the filter as an extension configuration, bootstraps,
// and the custom resources of Istio and Envoy Gateway.
//
// Its invariant: one place, Plugin, turns a policy into the filter's Envoy configuration; xDS,
// render and the tests all use it. It must never import a package of controlplane or filter.
//
// plugin.go and capabilities.go have the filter's configuration, bootstrap.go that of a whole
// Envoy, with address.go; istio.go and envoygateway.go write custom resources by what
// kubernetes.go checks; yaml.go writes policies and configurations as YAML. A template
// (*.yaml.tmpl) has the text of each.
package envoy

import (
	"cmp"
	"errors"
	"fmt"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// ResourceName is the name of the filter's extension configuration: the
	// name of the HTTP filter in a listener and of the resource it asks for.
	ResourceName = "sluice"

	// DefaultVMID is the namespace of shared data that holds the counters. It
	// must not change between releases: another one starts with no counters.
	DefaultVMID = "sluice"

	// DefaultRuntime is the only WebAssembly engine in Envoy's official builds.
	DefaultRuntime = "envoy.wasm.runtime.v8"

	// FilterTypeURL is the type of the filter's configuration.
	FilterTypeURL = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
)

// Plugin is the filter with a policy, of which Filter makes Envoy's configuration. Wasm and
// Policy are required; each other field has a default.
type Plugin struct {
	Name    string // default ResourceName
	VMID    string // default DefaultVMID
	Runtime string // default DefaultRuntime
	Wasm    string // path of the filter's binary on the proxy's machine
	Policy  []byte // JSON
	Envoy   string // version of the proxy, such as "1.40.0"; empty = any

	// Capabilities is an allow-list of the host functions the module may call
	// and of the callbacks Envoy calls; nil is what Policy needs. It must name
	// every import of the module, WASI's too.
	Capabilities []string
}

// ErrNoWasm says that a Plugin lacks the path of the filter's binary.
var ErrNoWasm = errors.New("no path of the filter's wasm binary")

// Filter returns the configuration of Envoy's wasm HTTP filter.
//
// A VM that trapped is reloaded (FAIL_RELOAD); until then its worker answers 503. To fail open
// instead would never recover: one trap would leave a worker without limits until the next push,
// and nobody would see that from outside. If a host call fails, on_error in the policy decides;
// by default it allows the request.
func (p Plugin) Filter() (*wasmfilterv3.Wasm, error) {
	if p.Wasm == "" {
		return nil, ErrNoWasm
	}
	if !utf8.Valid(p.Policy) {
		return nil, errors.New("policy is not valid UTF-8")
	}
	configuration, err := marshal(wrapperspb.String(string(p.Policy)))
	if err != nil {
		return nil, fmt.Errorf("marshal policy: %w", err)
	}
	name := cmp.Or(p.Name, ResourceName)
	config := &wasmv3.PluginConfig{
		Name:          name,
		RootId:        name,
		Configuration: configuration,
		FailurePolicy: wasmv3.FailurePolicy_FAIL_RELOAD,
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			VmId:    cmp.Or(p.VMID, DefaultVMID),
			Runtime: cmp.Or(p.Runtime, DefaultRuntime),
			Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
				Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: p.Wasm}},
			}},
		}},
	}
	if err := p.restrict(config); err != nil {
		return nil, fmt.Errorf("marshal VM configuration: %w", err)
	}
	return &wasmfilterv3.Wasm{Config: config}, nil
}

// Any returns Filter packed for a filter's typed_config, byte for byte the
// same for the same Plugin.
func (p Plugin) Any() (*anypb.Any, error) {
	filter, err := p.Filter()
	if err != nil {
		return nil, err
	}
	return marshal(filter)
}

// ExtensionConfig returns the resource that extension config discovery serves. Envoy refuses a
// resource with another name than it asked for.
func (p Plugin) ExtensionConfig() (*corev3.TypedExtensionConfig, error) {
	config, err := p.Any()
	if err != nil {
		return nil, err
	}
	return &corev3.TypedExtensionConfig{Name: cmp.Or(p.Name, ResourceName), TypedConfig: config}, nil
}

// marshal packs deterministically: Envoy and golden files compare bytes.
func marshal(m proto.Message) (*anypb.Any, error) {
	packed := new(anypb.Any)
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, err
	}
	return packed, nil
}
