//go:build istio

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fromRegistry has pilot-agent pull a release's images. It refuses a realm that is no URL.
func (s *istioSite) fromRegistry(t *testing.T) {
	images := startImages(t, s.certs.ca, s.certs.pair)
	address := host(images.Server)
	named := registryName + ":" + port(address)
	s.with(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: registry, namespace: edge}\ntype: kubernetes.io/dockerconfigjson\n"+
		"data: {.dockerconfigjson: "+pullSecret(t, address, named)+"}\n")
	flags := []string{"--target", "Gateway/edge", "--url"}
	secret := []string{"--pull-secret", "registry"}
	for form, url := range images.pushRelease(t) {
		policy := limited(form, "2/"+far, "")
		byName := slices.Concat(flags, []string{strings.Replace(url, address, named, 1)})
		t.Run(form, func(t *testing.T) {
			s.with(t, s.render(t, policy, byName...))
			awaitStatus(t, http.StatusForbidden, at(gatewayPort), "/", "x-user-id", "without the password")
			s.kube.apply(t, s.render(t, policy, slices.Concat(byName, secret)...))
			awaitLimit(t, at(gatewayPort), "/", form, 2)
			passes(t, 2, at(gatewayPort), "/", "alice")
		})
		t.Run(form+", by an address whose realm is no URL", func(t *testing.T) {
			s.with(t, s.render(t, policy, slices.Concat(flags, []string{url}, secret)...))
			awaitStatus(t, http.StatusForbidden, at(gatewayPort), "/", "x-user-id", "alice")
			require.Contains(t, s.gateway.Log(), `realm scheme "" not allowed`)
		})
	}
}

// page has the API server check the resources of docs/istio.md.
func (s *istioSite) page(t *testing.T) {
	for _, kind := range []string{"name: sluice-quota", "name: no-underscores"} {
		s.kube.accepts(t, block(t, "istio.md", kind))
	}
}

// manifests has the API server check what `sluice render kubernetes` writes.
func (s *istioSite) manifests(t *testing.T) {
	for _, more := range [][]string{nil, {"--quota-store", "redis://redis.data:6379"}} {
		s.kube.accepts(t, sluiceOK(t, append([]string{"render", "kubernetes", "--image", "registry.example/sluice:v0.1.0",
			"-n", "edge", "--proxies", "edge"}, more...)...))
	}
}

// quota: rules of scope cluster count over the gateway and the sidecar. They ask a
// real `sluice quota`, which is a service of the mesh as docs/istio.md has it.
func (s *istioSite) quota(t *testing.T) {
	service := startQuota(t, "memory")
	_, port, err := net.SplitHostPort(service.address)
	require.NoError(t, err)
	s.with(t, strings.ReplaceAll(read(t, "testdata/istio-quota.yaml"), "QUOTA_PORT", port)) // in Kubernetes it is a Service
	s.with(t, strings.ReplaceAll(block(t, "istio.md", "name: sluice-quota"), "quota.shop.svc.cluster.local", "quota.example"))
	s.with(t, s.render(t, "version: 1\ndomain: shop\nheaders: ietf\nrules:\n"+
		"- {name: everywhere, scope: cluster, key: [{header: x-user-id}], on_unavailable: deny, limits: [10/"+far+"]}\n",
		"--quota-cluster", "outbound|18001||quota.example"))
	proxies := []int{gatewayPort, sidecarPort}
	for _, port := range proxies {
		eventually(t, 60*time.Second, "units for a proxy", func() bool {
			res, _, err := at(port).try("/", "x-user-id", fmt.Sprint("first-", port), "connection", "close")
			return err == nil && strings.HasPrefix(res.Header.Get("RateLimit"), `"everywhere";`) && spend(at(port), 1, fmt.Sprint("second-", port)) == 1
		})
	}
	through := 0
	for i := range 40 {
		through += spend(at(proxies[i%2]), 1, "alice")
	}
	require.Equal(t, 10, through)
}
