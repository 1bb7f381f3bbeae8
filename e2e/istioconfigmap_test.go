//go:build istio

package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy"
)

// applyInjector has istiod put sidecars into pods, and make Deployments for Gateways, by
// the templates of its release.
func (m *mesh) applyInjector(t *testing.T) {
	for _, document := range betweenDocuments.Split(read(t, m.installed, "istiod.yaml"), -1) {
		if strings.Contains(document, "\nkind: ConfigMap\n") && strings.Contains(document, "\n  name: istio-sidecar-injector\n") {
			m.kube.apply(t, document)
		}
	}
	m.kube.apply(t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: injector}
webhooks:
- name: object.sidecar-injector.istio.io
  clientConfig: {url: "https://127.0.0.1:%d/inject", caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  admissionReviewVersions: [v1]
  sideEffects: None
`, injectorPort, base64.StdEncoding.EncodeToString([]byte(read(t, m.certs.ca)))))
}

// fromConfigMap does what `sluice render istio` writes in its comment. Istio puts the
// volume into the pods of a sidecar and of a gateway. What the kubelet then does, mount
// does: there is none.
func (s *istioSite) fromConfigMap(t *testing.T) {
	flags := []string{"--wasm-configmap", "sluice-1", "--wasm", built.filter}
	onGateway := s.render(t, limited("mounted", "2/"+far, ""), append(flags, "--target", "Gateway/edge")...)
	flags = append(flags, "--name", "shop", "--selector", "app=shop", "--mode", "server")
	onSidecar := s.render(t, limited("mounted", "3/"+far, ""), flags...)
	s.with(t, onSidecar)
	awaitStatus(t, http.StatusInternalServerError, at(sidecarPort), "/", "x-user-id", "before the file is there")

	s.with(t, configMapOf(t, onGateway))
	s.with(t, mounting(onSidecar))
	var sidecar pod
	require.True(t, s.kube.read(t, "/api/v1/namespaces/edge/pods/mounting", &sidecar))
	s.mount(t, "shop", sidecar)
	var deployment struct{ Spec struct{ Template pod } }
	eventually(t, 60*time.Second, "istiod to make the gateway's Deployment", func() bool {
		return s.kube.read(t, "/apis/apps/v1/namespaces/edge/deployments/mounting-istio", &deployment)
	})
	s.mount(t, "edge", deployment.Spec.Template)

	s.with(t, onGateway)
	awaitLimit(t, at(gatewayPort), "/", "mounted", 2)
	passes(t, 2, at(gatewayPort), "/", "alice")
	s.kube.apply(t, s.render(t, limited("mounted", "4/"+far, ""), flags...)) // nothing else has it look again
	awaitLimit(t, at(sidecarPort), "/", "mounted", 4)
	passes(t, 4, at(sidecarPort), "/", "alice")
}

var made = regexp.MustCompile(`\n#   kubectl create configmap (\S+) -n (\S+) --from-file=(\S+)='(.+)'\n#   kubectl patch configmap (\S+) -n (\S+) -p '{(.+)}'\n`)

// configMapOf is what the commands in a comment make.
func configMapOf(t *testing.T, comment string) string {
	found := made.FindStringSubmatch(comment)
	require.NotNil(t, found, comment)
	require.Equal(t, found[1:3], found[5:7])
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s}, binaryData: {%s: %s}, %s}",
		found[1], found[2], found[3], base64.StdEncoding.EncodeToString([]byte(read(t, found[4]))), found[7])
}

// configMapSize: the API server takes of data what `sluice render istio` takes.
func (s *istioSite) configMapSize(t *testing.T) {
	for size, want := range map[int]int{envoy.MaxConfigMap: http.StatusCreated, envoy.MaxConfigMap + 1: http.StatusUnprocessableEntity} {
		status, answer := s.kube.call(t, http.MethodPost, "/api/v1/namespaces/edge/configmaps?dryRun=All",
			`{"metadata": {"name": "large"}, "binaryData": {"sluice.wasm": "`+base64.StdEncoding.EncodeToString(make([]byte, size))+`"}}`)
		require.Equal(t, want, status, "%.500s", answer)
	}
}

var (
	annotations = regexp.MustCompile(`(?m)^#   sidecar\.istio\.io/.*\n`)
	overlay     = regexp.MustCompile(`(?m)^#   deployment: .*\n(#     .*\n)+`)
)

// mounting are a pod with a sidecar and a Gateway that mount the ConfigMap as a comment
// says.
func mounting(comment string) string {
	sidecar, gateway := strings.Join(annotations.FindAllString(comment, -1), ""), overlay.FindString(comment)
	return `
apiVersion: v1
kind: Pod
metadata:
  name: mounting
  namespace: edge
  annotations:
` + strings.ReplaceAll(sidecar, "#", " ") + `
spec:
  serviceAccountName: shop
  containers: [{name: shop, image: shop.example/shop}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mounting, namespace: edge}
data:
` + strings.ReplaceAll(gateway, "#", "") + `
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: mounting, namespace: edge}
spec:
  gatewayClassName: istio
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: mounting}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
`
}

// pod is what matters here of a Pod and of a Deployment's template.
type pod struct {
	Spec struct {
		Containers, InitContainers []container
		Volumes                    []struct {
			Name      string
			ConfigMap struct{ Name string }
		}
	}
}

type container struct {
	Name         string
	VolumeMounts []struct {
		Name, MountPath string
		ReadOnly        bool
	}
}

// configMapIn is the ConfigMap that a pod's proxy has at a path.
func (p *pod) configMapIn(path string) string {
	for _, c := range append(p.Spec.Containers, p.Spec.InitContainers...) {
		for _, m := range c.VolumeMounts {
			for _, v := range p.Spec.Volumes {
				if c.Name == "istio-proxy" && m.ReadOnly && m.MountPath == path && v.Name == m.Name {
					return v.ConfigMap.Name
				}
			}
		}
	}
	return ""
}

// mount puts into a proxy's folder what the kubelet would: the ConfigMap's files, behind
// links.
func (s *istioSite) mount(t *testing.T, proxy string, p pod) {
	name := p.configMapIn(envoy.ConfigMap{}.Folder())
	require.NotEmpty(t, name, p)
	var stored struct{ BinaryData map[string][]byte }
	require.True(t, s.kube.read(t, "/api/v1/namespaces/edge/configmaps/"+name, &stored))
	folder := filepath.Join(s.dir, proxy, "configmap")
	require.NoError(t, os.Mkdir(filepath.Join(folder, "..1"), 0o755))
	require.NoError(t, os.Symlink("..1", filepath.Join(folder, "..data")))
	for key, content := range stored.BinaryData {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "..1", key), content, 0o644))
		require.NoError(t, os.Symlink(filepath.Join("..data", key), filepath.Join(folder, key)))
	}
}
