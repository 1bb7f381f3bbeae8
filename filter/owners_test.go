package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Filters of ever new names leave only the tables of the last minutes behind. The
// filter that stays keeps its counts, also if it is an older release that sends no
// heartbeats.
func TestNamesThatComeAndGo(t *testing.T) {
	for name, wasm := range map[string]func(*testing.T) []byte{
		"this release": func(*testing.T) []byte { return nil }, "an older one": frozen,
	} {
		t.Run(name, func(t *testing.T) {
			store := sim.NewStore()
			b := start(t, func(o *sim.Options) {
				if old := wasm(t); old != nil {
					o.Wasm = old
				}
				o.Store = store
			})
			require.NoError(t, b.Configure(policy(`{"name":"stays","limits":["2/366d"]}`)))
			require.Equal(t, 200, b.serve(t, 0, alice).Status)
			const names = 28
			for n := range names {
				c := start(t, func(o *sim.Options) {
					o.Store, o.PluginName, o.Now = store, fmt.Sprint("filter", n), func() int64 { return b.now }
				})
				require.NoError(t, c.Configure(policy(fmt.Sprintf(`{"name":"r%d","limits":["1/366d"]}`, n))))
				require.Equal(t, 200, c.serve(t, 0, alice).Status)
				for range 2 {
					b.now += state.RoundNs + 1
					require.NoError(t, c.Tick(0))
					require.NoError(t, b.Tick(0))
				}
				c.Close()
			}
			pages := 0
			for key := range b.Shared().Snapshot() {
				if strings.HasPrefix(key, "sl/") {
					pages++
				}
			}
			maxPages := 1 + (state.MissedRounds+2)/2 + 1 + state.WaitingTables
			require.Less(t, maxPages, names/2)
			require.LessOrEqual(t, pages, maxPages)
			require.Equal(t, 200, b.serve(t, 0, alice).Status)
			require.Equal(t, 429, b.serve(t, 0, alice).Status, "its count is kept")
		})
	}
}
