package simulate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// A client that stays below every window's rate is denied for at most 10 s after its
// proxy's clock, or the quota store's, was set back: however long the longest window is.
func TestTheClockIsSetBack(t *testing.T) {
	for _, scope := range []string{"proxy", "cluster"} {
		for _, backMs := range []int{9_000, 300_000, 3_600_000, 100 * 86_400_000} {
			var requests strings.Builder
			for i := range 323 {
				at := 1_700_000_000_000 + i*10
				if i >= 3 {
					at = 1_700_000_000_000 - backMs + i*1000
				}
				fmt.Fprintf(&requests, `{"at_ms":%d,"headers":{"k":"a"}}`+"\n", at)
			}
			out, err := run(t, "{version: 1, rules: [{name: api, scope: "+scope+", key: [{header: k}], limits: [20/1s, 100000/1d]}]}",
				requests.String(), simulate.Options{Workers: 2})
			require.NoError(t, err)
			require.Equal(t, 323, strings.Count(out, `"status":200`), "scope %s, set back by %d ms", scope, backMs)
		}
	}
}
