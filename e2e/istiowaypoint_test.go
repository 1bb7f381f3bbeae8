//go:build istio

package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// waypoint shows what istiod sends to a waypoint. The official Envoy cannot run one: its
// listeners take filters that only Istio's own builds have.
func (s *istioSite) waypoint(t *testing.T) {
	s.kube.apply(t, read(t, "testdata/istio-waypoint.yaml"))
	const service, entry = "behind.edge.svc.cluster.local", "outside.example"
	for _, c := range []struct {
		target, namespace string
		limits            []string
	}{
		{"Service/behind", "edge", []string{service}},
		{"ServiceEntry/outside", "edge", []string{entry}},
		{"Gateway/waypoint", "edge", []string{service, entry}},
		{"GatewayClass/istio-waypoint", "istio-system", []string{service, entry}},
	} {
		t.Run(c.target, func(t *testing.T) {
			s.with(t, s.render(t, limited("waypoint", "2/"+far, ""), "-n", c.namespace, "--target", c.target))
			eventually(t, 60*time.Second, "istiod to send the plugin", func() bool {
				return slices.Equal(c.limits, s.limitedHosts(t, c.namespace+".sluice"+translated, service, entry))
			})
		})
	}
}

// translated is what Istio puts behind the name of a WasmPlugin.
const translated = "~istio-translated-wasmplugin"

// limitedHosts asks istiod, as a waypoint does, and returns the hosts whose requests go
// through a plugin.
func (s *istioSite) limitedHosts(t *testing.T, plugin string, hosts ...string) (with []string) {
	connection, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", discoveryPort), grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{RootCAs: s.certs.pool, Certificates: []tls.Certificate{s.certs.pair}, MinVersion: tls.VersionTLS12})))
	require.NoError(t, err)
	defer connection.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).StreamAggregatedResources(t.Context())
	require.NoError(t, err)
	metadata, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": "edge", "SERVICE_ACCOUNT": "edge", "CLUSTER_ID": "Kubernetes",
		"LABELS": map[string]any{"gateway.networking.k8s.io/gateway-name": "waypoint"},
	})
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener",
		Node:    &corev3.Node{Id: "waypoint~10.9.9.7~waypoint.edge~edge.svc.cluster.local", Metadata: metadata},
	}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	for _, resource := range answer.Resources {
		var listener listenerv3.Listener
		require.NoError(t, resource.UnmarshalTo(&listener))
		for _, chain := range listener.FilterChains {
			text, err := proto.Marshal(chain)
			require.NoError(t, err)
			for _, host := range hosts {
				if chain.Name == "inbound-vip|80|http|"+host && bytes.Contains(text, []byte(plugin)) {
					with = append(with, host)
				}
			}
		}
	}
	slices.Sort(with)
	return with
}
