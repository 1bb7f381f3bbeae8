//go:build istio

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// kubeAPI is a running kube-apiserver.
type kubeAPI struct {
	url, token string
	client     *http.Client
}

var betweenDocuments = regexp.MustCompile(`(?m)^---\s*$`)

// apply stores resources as `kubectl apply --server-side --validate=strict` does.
func (k *kubeAPI) apply(t *testing.T, resources string) {
	k.send(t, resources, "")
}

// accepts has the API server check resources strictly, without storing them.
func (k *kubeAPI) accepts(t *testing.T, resources string) {
	k.send(t, resources, "&dryRun=All")
}

func (k *kubeAPI) send(t *testing.T, resources, query string) {
	for _, text := range betweenDocuments.Split(resources, -1) {
		path := k.path(t, text)
		if path == "" {
			continue
		}
		// The text goes as it is: Kubernetes' own reader of YAML reads it.
		status, answer := k.call(t, http.MethodPatch, path+"?fieldManager=e2e&force=true&fieldValidation=Strict"+query, text)
		require.Less(t, status, 300, "%s\n%s", answer, text)
	}
}

// remove deletes what apply has stored.
func (k *kubeAPI) remove(t *testing.T, resources string) {
	for _, text := range betweenDocuments.Split(resources, -1) {
		status, answer := k.call(t, http.MethodDelete, k.path(t, text), "")
		require.Equal(t, http.StatusOK, status, answer)
	}
}

// read decodes what the API server has stored, and is false where there is nothing.
func (k *kubeAPI) read(t *testing.T, path string, into any) bool {
	status, answer := k.call(t, http.MethodGet, path, "")
	if status == http.StatusNotFound {
		return false
	}
	require.Equal(t, http.StatusOK, status, "%s", answer)
	require.NoError(t, json.Unmarshal(answer, into))
	return true
}

// path is where the API server keeps a resource, "" for an empty document.
func (k *kubeAPI) path(t *testing.T, text string) string {
	var object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name, Namespace string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &object))
	if object.Kind == "" {
		return ""
	}
	group := "/apis/" + object.APIVersion
	if !strings.Contains(object.APIVersion, "/") {
		group = "/api/" + object.APIVersion
	}
	resource, namespaced := k.resource(t, group, object.Kind)
	if !namespaced {
		return group + "/" + resource + "/" + object.Metadata.Name
	}
	if object.Metadata.Namespace == "" {
		object.Metadata.Namespace = "default"
	}
	return group + "/namespaces/" + object.Metadata.Namespace + "/" + resource + "/" + object.Metadata.Name
}

// resource asks what the API server calls a kind. It waits, because the API server
// takes a moment over a new kind.
func (k *kubeAPI) resource(t *testing.T, group, kind string) (name string, namespaced bool) {
	eventually(t, 20*time.Second, "the API server to know "+kind+" of "+group, func() bool {
		var list struct {
			Resources []struct {
				Name, Kind string
				Namespaced bool
			}
		}
		if status, answer := k.call(t, http.MethodGet, group, ""); status != http.StatusOK || json.Unmarshal(answer, &list) != nil {
			return false
		}
		for _, r := range list.Resources {
			if r.Kind == kind && !strings.Contains(r.Name, "/") {
				name, namespaced = r.Name, r.Namespaced
			}
		}
		return name != ""
	})
	return name, namespaced
}

// call sends one request. Status 0 means that nobody answered.
func (k *kubeAPI) call(t *testing.T, method, path, body string) (status int, answer []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second) // cleanups call it, too
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, k.url+path, bytes.NewReader([]byte(body)))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+k.token)
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	res, err := k.client.Do(req)
	if err != nil {
		return 0, fmt.Append(nil, err)
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, answer
}
