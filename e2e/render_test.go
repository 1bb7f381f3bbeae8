package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// TestRenderedBootstraps: Envoy accepts a bootstrap that `sluice render` prints, and its
// validation runs the filter, which refuses a policy that is broken afterwards. Other
// tests start Envoys with a static policy, so here it is validated only as broken. The
// filter answers YAML and a Struct with what to do.
func TestRenderedBootstraps(t *testing.T) {
	t.Parallel()
	managed := file(t, "managed.yaml", "version: 1\nmanage: {path: /.sluice/, token_sha256: "+tokenSHA256+", port: 9902}\nrules: [{name: a, limits: [1/1m]}]\n")
	base := []string{"render", "envoy", "--listen", "127.0.0.1:10000", "--upstream", "127.0.0.1:9", "--admin", "127.0.0.1:9901", "--wasm", built.filter}
	render := func(args ...string) string {
		bootstrap, errs, exit := sluice(t, append(base, args...)...)
		require.Zero(t, exit, errs)
		return bootstrap
	}
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			static := render("-f", quickstart(), "--envoy-version", d.version())
			ecds := render("-f", managed, "--manage", "127.0.0.1:9902", "--xds", "localhost:18000", "--node", "edge", "--envoy-version", d.version())
			broken := strings.Replace(static, `"version": 1`, `"version": 7`, 1)
			require.NoError(t, proc.Validate(ctx, d.envoy, []byte(ecds)))
			require.ErrorContains(t, proc.Validate(ctx, d.envoy, []byte(broken)), "policy refused: version: unknown_version")
			for said, given := range map[string]any{
				"the filter reads JSON, not YAML":                 wrapped("StringValue", "version: 1\nrules: []\n"),
				"put it as JSON into google.protobuf.StringValue": wrapped("Struct", map[string]any{"version": 1, "rules": []any{}}),
			} {
				var doc map[string]any
				require.NoError(t, yaml.Unmarshal([]byte(static), &doc))
				listener := doc["static_resources"].(map[string]any)["listeners"].([]any)[0].(map[string]any)
				filter := managerOf(listener)["http_filters"].([]any)[0].(map[string]any)
				filter["typed_config"].(map[string]any)["config"].(map[string]any)["configuration"] = given
				require.ErrorContains(t, proc.Validate(ctx, d.envoy, marshaled(t, doc)), said)
			}
		})
	}
}

// wrapped is a value as a well-known protobuf type.
func wrapped(kind string, value any) map[string]any {
	return map[string]any{"@type": "type.googleapis.com/google.protobuf." + kind, "value": value}
}
