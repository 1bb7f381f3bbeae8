// Command kubernetes reads resources on standard input as the API server and the
// controllers do, with the published Go types of Kubernetes, Istio and Envoy
// Gateway, and prints what each makes of them for Envoy, a line of JSON each.
//
// Its invariant: it is strict. A field that a type does not know, a field given
// twice or a wrong type is an error. It is a module of its own so that what it
// needs burdens nobody who builds or uses sluice.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	gateway "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/golang/protobuf/jsonpb" //nolint:staticcheck // what Istio uses
	legacy "github.com/golang/protobuf/proto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	istio "istio.io/api/extensions/v1alpha1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// plugin is what Envoy gets to see.
type plugin struct {
	Kind          string `json:"kind"`
	Namespace     string `json:"namespace,omitempty"`
	Name          string `json:"name"`    // of Envoy's plugin
	RootID        string `json:"root_id"` // of Envoy's plugin
	VMID          string `json:"vm_id"`
	FailurePolicy string `json:"failure_policy"`
	Code          string `json:"code"`          // where the product fetches the binary
	Configuration string `json:"configuration"` // what the filter reads
	Spec          any    `json:"spec"`          // as decoded, all of it
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	documents := kubeyaml.NewYAMLReader(bufio.NewReader(in))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return err
		}
		p, err := read(text)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(p); err != nil {
			return err
		}
	}
}

func read(text []byte) (*plugin, error) {
	var kind meta.TypeMeta
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "extensions.istio.io/v1alpha1 WasmPlugin":
		return readWasmPlugin(text)
	case "extensions.istio.io/v1alpha1 TrafficExtension":
		return readTrafficExtension(text)
	case "gateway.envoyproxy.io/v1alpha1 EnvoyExtensionPolicy":
		return readEnvoyExtensionPolicy(text)
	}
	object := map[string]meta.Object{
		"v1 Service": &core.Service{}, "v1 ServiceAccount": &core.ServiceAccount{},
		"apps/v1 Deployment": &apps.Deployment{}, "apps/v1 StatefulSet": &apps.StatefulSet{},
		"networking.k8s.io/v1 NetworkPolicy": &networking.NetworkPolicy{}, "policy/v1 PodDisruptionBudget": &policy.PodDisruptionBudget{},
	}[kind.APIVersion+" "+kind.Kind]
	if object == nil {
		return nil, fmt.Errorf("no such kind: %s", kind)
	}
	err := strict(text, object)
	return &plugin{Kind: kind.Kind, Namespace: object.GetNamespace(), Name: object.GetName(), Spec: object}, err
}

// readIstio reads an object whose spec is a message of Istio's API.
func readIstio(text []byte, spec proto.Message) (meta.ObjectMeta, error) {
	var object struct {
		meta.TypeMeta `json:",inline"`
		Metadata      meta.ObjectMeta `json:"metadata"`
		Spec          json.RawMessage `json:"spec"`
	}
	if err := strict(text, &object); err != nil {
		return object.Metadata, err
	}
	strictly := jsonpb.Unmarshaler{}
	return object.Metadata, strictly.Unmarshal(bytes.NewReader(object.Spec), legacy.MessageV1(spec))
}

func readWasmPlugin(text []byte) (*plugin, error) {
	spec := &istio.WasmPlugin{}
	object, err := readIstio(text, spec)
	if err != nil {
		return nil, err
	}
	return istioPlugin("WasmPlugin", object, spec, spec.GetPluginName(), spec.GetUrl(), spec.GetFailStrategy(), spec.GetPluginConfig())
}

func readTrafficExtension(text []byte) (*plugin, error) {
	spec := &istio.TrafficExtension{}
	object, err := readIstio(text, spec)
	if err != nil {
		return nil, err
	}
	w := spec.GetWasm()
	if w == nil {
		return nil, errors.New("no wasm")
	}
	return istioPlugin("TrafficExtension", object, spec, w.GetPluginName(), w.GetUrl(), w.GetFailStrategy(), w.GetPluginConfig())
}

// istioPlugin is what istiod sends to its proxies: no vm_id, and the Struct as
// the text that the old JSON package makes of it.
func istioPlugin(kind string, object meta.ObjectMeta, spec proto.Message, root, url string, fail istio.FailStrategy, config *structpb.Struct) (*plugin, error) {
	marshaler := jsonpb.Marshaler{}
	configuration, err := marshaler.MarshalToString(legacy.MessageV1(config))
	if err != nil {
		return nil, err
	}
	whole, err := marshaler.MarshalToString(legacy.MessageV1(spec))
	if err != nil {
		return nil, err
	}
	return &plugin{
		Kind: kind, Namespace: object.Namespace, Name: object.Namespace + "." + object.Name, RootID: root,
		FailurePolicy: map[istio.FailStrategy]string{
			istio.FailStrategy_FAIL_OPEN: "FAIL_OPEN", istio.FailStrategy_FAIL_CLOSE: "FAIL_CLOSED", istio.FailStrategy_FAIL_RELOAD: "FAIL_RELOAD",
		}[fail],
		Code: url, Configuration: configuration, Spec: json.RawMessage(whole),
	}, nil
}

// readEnvoyExtensionPolicy is what Envoy Gateway sends: the configuration as the
// text that the API server keeps, and a vm_id for each policy.
func readEnvoyExtensionPolicy(text []byte) (*plugin, error) {
	var object gateway.EnvoyExtensionPolicy
	if err := strict(text, &object); err != nil {
		return nil, err
	}
	if len(object.Spec.Wasm) != 1 {
		return nil, fmt.Errorf("%d wasm extensions", len(object.Spec.Wasm))
	}
	w := object.Spec.Wasm[0]
	vm := strings.Join([]string{"envoyextensionpolicy", object.Namespace, object.Name, "wasm", "0"}, "/")
	p := &plugin{
		Kind: object.Kind, Namespace: object.Namespace, Name: vm, VMID: vm, FailurePolicy: "FAIL_CLOSED",
		Configuration: string(w.Config.Raw), Spec: object.Spec,
	}
	if w.Name != nil {
		p.Name = *w.Name
	}
	if w.RootID != nil {
		p.RootID = *w.RootID
	}
	if w.FailOpen != nil && *w.FailOpen {
		p.FailurePolicy = "FAIL_OPEN"
	}
	switch {
	case w.Code.Type == gateway.HTTPWasmCodeSourceType && w.Code.HTTP != nil && w.Code.Image == nil:
		p.Code = w.Code.HTTP.URL
	case w.Code.Type == gateway.ImageWasmCodeSourceType && w.Code.Image != nil && w.Code.HTTP == nil:
		p.Code = w.Code.Image.URL
	default:
		return nil, fmt.Errorf("code of type %q without its field, or with another's", w.Code.Type)
	}
	return p, nil
}

func strict(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}
