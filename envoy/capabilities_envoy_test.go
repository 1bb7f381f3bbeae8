package envoy_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// TestCapabilitiesRestrict: Envoy keeps to the list. With the default the filter
// gets the request; with one callback less it does not, and the upstream is asked. No
// version warns of the field that its list stands in.
func TestCapabilitiesRestrict(t *testing.T) {
	without := slices.DeleteFunc(envoy.DefaultCapabilities(),
		func(name string) bool { return name == "proxy_on_request_headers" })
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		version, err := proc.Version(ctx, binary)
		require.NoError(t, err)
		for _, tc := range []struct {
			name         string
			capabilities []string
			want         int
		}{
			{"default", nil, http.StatusTooManyRequests},
			{"one less", without, http.StatusServiceUnavailable}, // from the upstream that is not there
		} {
			p := start(t, ctx, binary, envoy.BootstrapOptions{
				Plugin: envoy.Plugin{
					Wasm:         buildtest.Filter(t),
					Policy:       []byte(denying),
					Capabilities: tc.capabilities,
					Envoy:        version,
				},
				Listen: "127.0.0.1:0", Upstream: unusedAddress(t), Admin: "127.0.0.1:0",
			})
			require.Equal(t, tc.want, ask(t, ctx, listener(t, ctx, p, envoy.ListenerName)), tc.name)
			require.NotContains(t, strings.ToLower(p.Log()), "deprecated", tc.name)
			require.NoError(t, p.Kill())
		}
	})
}
