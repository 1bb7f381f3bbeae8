package e2e

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// Three Envoys of four workers know together which keys they have denied.
func topCommand(t *testing.T, control *controlPlane, envoys []*proxy) {
	t.Helper()
	for _, mode := range []string{"plain", "hash", "off"} {
		control.apply(t, "report_keys: "+mode+"\n"+oneRule("algorithm: fixed_window_per_key, limits: [5/1h], counter: denied-"+mode))
		alice, bob := "alice-"+mode, "bob-"+mode
		for _, p := range envoys {
			require.Equal(t, 5, count(p.load(16).send(t, 40, user(alice)), allowed))
			require.Equal(t, 5, count(p.load(16).send(t, 20, user(bob)), allowed))
		}
		if mode == "off" {
			r := control.counters(t, "top")
			require.Equal(t, len(envoys), r.Failed)
			require.Contains(t, r.Proxies[0].Error, "report_keys is off")
			continue
		}
		var keys []answer.DeniedKey
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
		// Another worker may answer this one, and knows what the first has denied by its next tick.
		table := regexp.MustCompile(`(?s)^RULE +MODE +DENIED +ERROR +KEY\nper-user +enforced +105 +0 +.*\nper-user +enforced +45 +0 +.*\nsince 20`)
		eventually(t, 10*time.Second, "the same as a table", func() bool {
			text, errs, exit := sluice(t, "counters", "top", "--server", control.url())
			require.Zero(t, exit, errs)
			return table.MatchString(text)
		})
	}
}
