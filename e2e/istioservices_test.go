//go:build istio

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

var fencedYAML = regexp.MustCompile("(?s)```yaml\n(apiVersion: .*?)```")

// page has the API server check the resources of docs/istio.md.
func (s *istioSite) page(t *testing.T) {
	for _, text := range pageResources(t) {
		s.kube.accepts(t, text)
	}
}

// manifests has the API server check what `sluice render kubernetes` writes.
func (s *istioSite) manifests(t *testing.T) {
	for _, more := range [][]string{nil, {"--quota-store", "redis://redis.data:6379"}} {
		text, errs, exit := sluice(t, append([]string{"render", "kubernetes", "--image", "registry.example/sluice:v0.1.0",
			"-n", "edge", "--proxies", "edge"}, more...)...)
		require.Zero(t, exit, errs)
		s.kube.accepts(t, text)
	}
}

func pageResources(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(buildtest.Root(), "docs", "istio.md"))
	require.NoError(t, err)
	for _, found := range fencedYAML.FindAllStringSubmatch(string(text), -1) {
		list = append(list, found[1])
	}
	require.Len(t, list, 2)
	return list
}

// quota: rules of scope cluster count over the gateway and the sidecar. They ask a
// real `sluice quota`, which is a service of the mesh as docs/istio.md has it.
func (s *istioSite) quota(t *testing.T) {
	service := startQuota(t, "memory")
	_, port, err := net.SplitHostPort(service.address)
	require.NoError(t, err)
	s.with(t, quotaEntry(port))
	s.with(t, strings.ReplaceAll(pageResources(t)[0], "quota.shop.svc.cluster.local", "quota.example"))
	s.with(t, s.render(t, "version: 1\ndomain: shop\nheaders: ietf\nrules:\n"+
		"- {name: everywhere, scope: cluster, key: [{header: x-user-id}], on_unavailable: deny, limits: [10/"+far+"]}\n",
		"--quota-cluster", "outbound|18001||quota.example"))
	proxies := []int{gatewayPort, sidecarPort}
	for _, port := range proxies {
		eventually(t, 60*time.Second, "units for a proxy", func() bool {
			return s.left(t, port, "everywhere", fmt.Sprint("first-", port)) >= 0 && s.status(t, port, fmt.Sprint("second-", port)) == allowed
		})
	}
	through := 0
	for i := range 40 {
		through += s.spend(t, proxies[i%2], 1, "alice")
	}
	require.Equal(t, 10, through)
}
