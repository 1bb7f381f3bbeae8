package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Three Envoys of four workers know together which keys they have denied.
func topCommand(t *testing.T, control *controlPlane, envoys []*proxy) {
	for _, mode := range []string{"plain", "hash"} {
		control.apply(t, "report_keys: "+mode+"\n"+oneRule("algorithm: fixed_window_per_key, limits: [5/1h], counter: denied-"+mode))
		alice, bob := "alice-"+mode, "bob-"+mode
		for _, p := range envoys {
			require.Equal(t, 5, count(p.load(16).send(t, 40, user(alice)), allowed))
			require.Equal(t, 5, count(p.load(16).send(t, 20, user(bob)), allowed))
		}
		var keys []result.DeniedKey
		eventually(t, 10*time.Second, "every worker's denials", func() bool {
			r := control.counters(t, "top", "--rule", "per-user")
			require.Zero(t, r.Failed)
			keys = r.Denials[0].Keys
			return len(keys) == 2 && keys[0].Denied == 105 && keys[1].Denied == 45
		})
		for i, name := range []string{alice, bob} {
			require.Zero(t, keys[i].Error)
			if mode == "plain" {
				require.Equal(t, []*string{&name}, keys[i].Key)
			} else {
				require.Regexp(t, "^[0-9a-f]{16}$", keys[i].Hash)
				require.Nil(t, keys[i].Key)
			}
		}
	}
}
