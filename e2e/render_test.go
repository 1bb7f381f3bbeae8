package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// TestRenderedBootstraps: Envoy accepts a bootstrap that `sluice render` prints. The
// filter refuses a policy that is broken afterwards, and answers YAML and a Struct with
// what to do. Other tests start Envoys with a static policy.
func TestRenderedBootstraps(t *testing.T) {
	t.Parallel()
	managed := file(t, "managed.yaml", "version: 1\nmanage: {path: /.sluice/, token_sha256: "+tokenSHA256+", port: 9902}\nrules: [{name: a, limits: [1/1m]}]\n")
	base := []string{"render", "envoy", "--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:9", "--admin", "127.0.0.1:9901", "--wasm", built.filter}
	render := func(args ...string) string {
		bootstrap := sluiceOK(t, append(base, args...)...)
		return bootstrap
	}
	eachEnvoy(t, func(t *testing.T, d driver) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		static := render("-f", filepath.Join(buildtest.Root(), "examples", "quickstart.yaml"), "--envoy-version", d.version())
		// The filter is compiled once, by the Envoy that refuses below.
		ecds := render("-f", managed, "--wasm", file(t, "smallest.wasm", buildtest.Smallest), "--manage", "127.0.0.1:9902", "--xds", "localhost:18000", "--node", "edge", "--envoy-version", d.version())
		require.NoError(t, proc.Validate(ctx, d.envoy, []byte(ecds)))
		s := siteOf(t, d)
		for said, given := range map[string]any{
			"policy refused: version: unknown_version":         wrapped("StringValue", `{"version": 7, "rules": []}`),
			"the filter reads JSON, not YAML":                  wrapped("StringValue", "version: 1\nrules: []\n"),
			"JSON, not YAML, in a google.protobuf.StringValue": wrapped("Struct", map[string]any{"version": 1, "rules": []any{}}),
		} {
			const refused = "listener_manager.lds.update_rejected"
			before, refusals := strings.Count(s.log(), said), s.stat(t, refused)
			s.offer(t, edited(t, []byte(static), func(static object) {
				filter := managerOf(listenersOf(static)[0])["http_filters"].([]any)[0].(map[string]any)
				filter["typed_config"].(map[string]any)["config"].(map[string]any)["configuration"] = given
			}))
			eventually(t, 20*time.Second, "the filter to refuse", func() bool {
				return strings.Count(s.log(), said) > before && s.stat(t, refused) > refusals
			})
		}
	})
}

// wrapped is a value as a well-known protobuf type.
func wrapped(kind string, value any) map[string]any {
	return map[string]any{"@type": "type.googleapis.com/google.protobuf." + kind, "value": value}
}
