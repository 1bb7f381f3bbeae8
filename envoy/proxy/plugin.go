package proxy

import (
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// nack is a refusal in Envoy's words, with the cause, which Envoy leaves out.
type nack struct {
	text  string
	cause error
}

func (n *nack) Error() string { return n.text + ": " + n.cause.Error() }
func (n *nack) Unwrap() error { return n.cause }

// plugin is what this data plane reads of a filter's configuration. There is
// one filter and one store, so vm_id, root_id and the runtime choose nothing.
type plugin struct {
	name   string
	policy []byte
	code   *corev3.DataSource
}

func readPlugin(resource *discoveryv3.Resource) (plugin, error) {
	extension := new(corev3.TypedExtensionConfig)
	if err := resource.GetResource().UnmarshalTo(extension); err != nil {
		return plugin{}, fmt.Errorf("read extension config: %w", err)
	}
	if extension.GetName() != resource.GetName() {
		return plugin{}, fmt.Errorf("Unexpected resource name in ExtensionConfigDS response: %s", extension.GetName()) //nolint:staticcheck // Envoy's words
	}
	filter := new(wasmfilterv3.Wasm)
	if err := extension.GetTypedConfig().UnmarshalTo(filter); err != nil {
		return plugin{}, fmt.Errorf("read filter config: %w", err)
	}
	config := filter.GetConfig()
	code := config.GetVmConfig().GetCode()
	if code.GetRemote() != nil || code.GetLocal() == nil {
		return plugin{}, errors.New("vm_config.code must be local: this data plane fetches no code")
	}
	policy, err := configuration(config.GetConfiguration())
	if err != nil {
		return plugin{}, err
	}
	return plugin{name: config.GetName(), policy: policy, code: code.GetLocal()}, nil
}

// configuration is what Envoy hands to the filter: texts and bytes as they
// are, a struct as JSON.
func configuration(packed *anypb.Any) ([]byte, error) {
	if packed == nil {
		return nil, nil
	}
	message, err := packed.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("read plugin configuration: %w", err)
	}
	switch message := message.(type) {
	case *wrapperspb.StringValue:
		return []byte(message.GetValue()), nil
	case *wrapperspb.BytesValue:
		return message.GetValue(), nil
	case *structpb.Struct:
		return protojson.Marshal(message)
	}
	return packed.GetValue(), nil
}

// code reads the filter that a configuration names. It reads a file anew every
// time, as Envoy does.
func (p *Proxy) code(source *corev3.DataSource) ([]byte, error) {
	switch source := source.GetSpecifier().(type) {
	case *corev3.DataSource_InlineBytes:
		return source.InlineBytes, nil
	case *corev3.DataSource_Filename:
		if source.Filename == Embedded {
			return p.options.Wasm, nil
		}
		wasm, err := p.options.ReadFile(source.Filename)
		if err != nil {
			return nil, &nack{text: "Invalid path: " + source.Filename, cause: err}
		}
		return wasm, nil
	}
	return nil, errors.New("vm_config.code must be a filename or inline_bytes")
}
