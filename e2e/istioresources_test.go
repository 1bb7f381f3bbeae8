//go:build istio

package e2e

import (
	"fmt"
	"strings"
	"testing"
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
func meshResources(t *testing.T, upstream int, keys string) string {
	return strings.NewReplacer(
		"GATEWAY_PORT", fmt.Sprint(gatewayPort), "MANAGE_PORT", fmt.Sprint(managePort), "SIDECAR_PORT", fmt.Sprint(sidecarPort),
		"OTHER_PORT", fmt.Sprint(otherPort), "OUTGOING_PORT", fmt.Sprint(outgoingPort), "UPSTREAM_PORT", fmt.Sprint(upstream),
		"JWKS", keys,
	).Replace(read(t, "testdata/istio.yaml"))
}
