package rollouts

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/canary"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// A proxy that ran the canary and is gone keeps it from being promoted.
func TestCanaryWaitsForAProxyThatIsGone(t *testing.T) {
	w := watching{Sight: canary.NewSight(), revision: 2}
	w.take(nil, nil, &xds.Canary{Connected: 1, Runs: 1, Gone: []string{"edge-9"}}, time.Unix(0, 0))
	require.Equal(t, "edge-9 ran it and is gone", w.waits)
}

// What a proxy lacks that tells nothing is said with what to do.
func TestCanaryOfASilentProxy(t *testing.T) {
	w, c := watching{Sight: canary.NewSight(), revision: 2}, xds.Canary{Connected: 1, Runs: 1}
	row := manage.Row{Asked: manage.Asked{Proxy: "p", Revision: 2, Error: "it is mute", Hint: "let it speak"}}
	w.take([]manage.Row{row}, nil, &c, time.Unix(0, 0))
	require.Equal(t, "p does not tell what it denies: it is mute; let it speak", w.waits)
}

// What a canary denies is no reason to stall where there is nothing to compare it with.
func TestCanaryAlone(t *testing.T) {
	w, c := watching{Sight: canary.NewSight(), revision: 2}, xds.Canary{Connected: 1, Runs: 1}
	c.State = store.Canary
	c.MaxDenied, c.AbortDenied = 2, true
	for i := range uint64(2) {
		row := manage.Row{Asked: manage.Asked{Proxy: "p", Revision: 2}}
		told := fmt.Appendf(nil, `{"stats":[{"rule":"r","metrics":{"denied":%d}}],"vm_starts":5}`, 1000*i)
		require.NoError(t, json.Unmarshal(told, &row))
		w.take([]manage.Row{row}, nil, &c, time.Unix(int64(i), 0))
	}
	require.Equal(t, "r denies 100.0 % of 1000 requests in the canary, 0.0 % of 0 on other proxies", w.Rules()[0].String())
	require.Equal(t, "waits for promote or abort; there is no other proxy to compare with", w.says(&c, time.Unix(1, 0)))
}
