// Command kubetypes decodes manifests from standard input as strictly as the API server
// does, with Kubernetes' own types, and prints them as JSON, one a line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

func main() {
	if err := decodeAll(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func decodeAll(r io.Reader) error {
	documents := yaml.NewYAMLReader(bufio.NewReader(r))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := decode(text); err != nil {
			return fmt.Errorf("%w in\n%s", err, text)
		}
	}
}

func decode(text []byte) error {
	var kind metav1.TypeMeta
	if err := strict.Unmarshal(text, &kind); err != nil {
		return err
	}
	object, ok := map[string]any{
		"v1/Service": &core.Service{}, "v1/ServiceAccount": &core.ServiceAccount{},
		"apps/v1/Deployment": &apps.Deployment{}, "apps/v1/StatefulSet": &apps.StatefulSet{},
		"networking.k8s.io/v1/NetworkPolicy": &networking.NetworkPolicy{}, "policy/v1/PodDisruptionBudget": &policy.PodDisruptionBudget{},
	}[kind.APIVersion+"/"+kind.Kind]
	if !ok {
		return fmt.Errorf("unknown kind %s %s", kind.APIVersion, kind.Kind)
	}
	if err := strict.UnmarshalStrict(text, object); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(object)
}
