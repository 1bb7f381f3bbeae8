//go:build istio

package e2e

import (
	"fmt"
	"strings"
)

// Ports on which the proxies listen.
const (
	gatewayPort  = 25180
	managePort   = 25181
	sidecarPort  = 25280
	otherPort    = 25281 // of the sidecar too
	outgoingPort = 25283
	gatewayAdmin = 25900
	sidecarAdmin = 25910
)

// Istio's own way to normalise, and the access log of docs/envoy.md.
const meshConfig = `
enablePrometheusMerge: false
defaultProviders: {}
trustDomain: cluster.local
rootNamespace: istio-system
ingressControllerMode: "OFF"
enableAutoMtls: false
accessLogFile: ACCESS_LOG
accessLogFormat: "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %FILTER_STATE(wasm.sluice.verdict:PLAIN)%\n"
`

// meshResources are a gateway, a sidecar, and the server behind both.
func meshResources(upstream int, keys string) string {
	return strings.NewReplacer(
		"GATEWAY_PORT", fmt.Sprint(gatewayPort), "MANAGE_PORT", fmt.Sprint(managePort), "SIDECAR_PORT", fmt.Sprint(sidecarPort),
		"OTHER_PORT", fmt.Sprint(otherPort), "OUTGOING_PORT", fmt.Sprint(outgoingPort), "UPSTREAM_PORT", fmt.Sprint(upstream),
		"JWKS", keys,
	).Replace(`
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: v1
kind: Namespace
metadata: {name: edge}
---
# Istio knows the proxies of a Gateway by the label.
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: edge}
spec:
  selector: {gateway.networking.k8s.io/gateway-name: edge}
  ports: [{name: http, port: GATEWAY_PORT}, {name: http-manage, port: MANAGE_PORT}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: edge.edge.svc.cluster.local}]
  listeners: [{name: http, port: GATEWAY_PORT, protocol: HTTP}, {name: manage, port: MANAGE_PORT, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: upstream, namespace: edge}
spec:
  hosts: [upstream.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: OUTGOING_PORT, name: http-out, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: UPSTREAM_PORT, http-out: UPSTREAM_PORT}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: all, namespace: edge}
spec:
  parentRefs: [{name: edge}]
  rules:
  - backendRefs: [{group: networking.istio.io, kind: Hostname, name: upstream.example, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: edge}
spec:
  selector: {app: shop}
  ports: [{name: http, port: SIDECAR_PORT}, {name: http-other, port: OTHER_PORT}]
---
# Without iptables a sidecar has listeners of its own for what comes in and goes out.
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: shop, namespace: edge}
spec:
  workloadSelector: {labels: {app: shop}}
  ingress:
  - {port: {number: SIDECAR_PORT, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:UPSTREAM_PORT"}
  - {port: {number: OTHER_PORT, protocol: HTTP, name: http-other}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:UPSTREAM_PORT"}
  egress:
  - {port: {number: OUTGOING_PORT, protocol: HTTP, name: out}, bind: 127.0.0.1, captureMode: NONE, hosts: ["*/upstream.example"]}
  - {hosts: ["*/quota.example"]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: plain, namespace: edge}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: edge}
spec:
  selector: {matchLabels: {istio: edge}}
  jwtRules: [{issuer: e2e, jwks: 'JWKS'}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: private, namespace: edge}
spec:
  selector: {matchLabels: {istio: edge}}
  action: DENY
  rules: [{to: [{operation: {paths: [/private]}}]}]
`)
}

// quotaEntry is the quota service as a service of the mesh. In Kubernetes it is a
// Service.
func quotaEntry(port string) string {
	return strings.ReplaceAll(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: quota, namespace: edge}
spec:
  hosts: [quota.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 18001, name: grpc-quota, protocol: GRPC}]
  endpoints: [{address: 127.0.0.1, ports: {grpc-quota: QUOTA_PORT}}]
`, "QUOTA_PORT", port)
}
