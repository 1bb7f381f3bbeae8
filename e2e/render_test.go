package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// TestRenderedBootstraps: Envoy accepts a bootstrap that `sluice render` prints, and its
// validation runs the filter, which refuses a policy that is broken afterwards. Other
// tests start Envoys with a static policy, so here it is validated only as broken.
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
		})
	}
}
