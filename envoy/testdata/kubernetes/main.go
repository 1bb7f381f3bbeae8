// Command kubernetes reads resources on standard input as the API server and the
// controllers do, with the published Go types of Kubernetes, Istio and Envoy
// Gateway, and prints what each makes of them, a line of JSON each.
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

	gateway "github.com/envoyproxy/gateway/api/v1alpha1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istio "istio.io/api/extensions/v1alpha1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// message is an object whose spec is a message of Istio's API.
type message struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            spec `json:"spec"`
}

type spec struct{ proto.Message }

func (s spec) UnmarshalJSON(text []byte) error { return protojson.Unmarshal(text, s.Message) }
func (s spec) MarshalJSON() ([]byte, error)    { return protojson.Marshal(s.Message) }

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
		object, err := read(text)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(object); err != nil {
			return err
		}
	}
}

func read(text []byte) (meta.Object, error) {
	var kind meta.TypeMeta
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, err
	}
	object := map[string]meta.Object{
		"extensions.istio.io/v1alpha1 WasmPlugin":             &message{Spec: spec{&istio.WasmPlugin{}}},
		"extensions.istio.io/v1alpha1 TrafficExtension":       &message{Spec: spec{&istio.TrafficExtension{}}},
		"gateway.envoyproxy.io/v1alpha1 EnvoyExtensionPolicy": &gateway.EnvoyExtensionPolicy{},
		"v1 ConfigMap":                           &core.ConfigMap{},
		"v1 Service":                             &core.Service{},
		"v1 ServiceAccount":                      &core.ServiceAccount{},
		"apps/v1 Deployment":                     &apps.Deployment{},
		"apps/v1 StatefulSet":                    &apps.StatefulSet{},
		"autoscaling/v2 HorizontalPodAutoscaler": &autoscaling.HorizontalPodAutoscaler{},
		"batch/v1 Job":                           &batch.Job{},
		"networking.k8s.io/v1 NetworkPolicy":     &networking.NetworkPolicy{},
		"policy/v1 PodDisruptionBudget":          &policy.PodDisruptionBudget{},
	}[kind.APIVersion+" "+kind.Kind]
	if object == nil {
		return nil, fmt.Errorf("no such kind: %s", kind)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return object, decoder.Decode(object)
}
