package main_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
)

// frozen returns the filter as commit 08039622240d built it, the last one before TinyGo
// compiled it, with `go run ./build/compile -o FILE` and `gzip -9 -n`. It reads and writes
// format 1 of the records, and does not change as long as that is supported. Each further format
// gets a file of its own.
func frozen(t *testing.T) []byte {
	t.Helper()
	file, err := os.Open("testdata/format1.wasm.gz")
	require.NoError(t, err)
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	require.NoError(t, err)
	b, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	return b
}

// Two releases of the filter count in one store, as they do during a rollout, and
// neither loses what the other has counted.
func TestOlderModuleBesideThisOne(t *testing.T) {
	for name, rule := range map[string]string{
		"aligned": `"limits":["100/366d"]`,
		"per key": `"limits":["100/366d"],"algorithm":"fixed_window_per_key"`,
		"layered": `"limits":["100/366d",{"requests":120,"per":"365d","algorithm":"fixed_window_per_key"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			store := sim.NewStore()
			shared := func(o *sim.Options) { o.Store = store }
			fresh, old := start(t, shared), start(t, shared, func(o *sim.Options) { o.Wasm = frozen(t) })
			config := policy(`{"name":"r","key":[{"header":"x-user-id"}],` + rule + `}`)
			require.NoError(t, fresh.Configure(config))
			require.NoError(t, old.Configure(config))
			passed := 0
			for i := range 200 {
				b := fresh
				if i%3 == 0 {
					b = old
				}
				if b.serve(t, 0, alice).Status == 200 {
					passed++
				}
			}
			require.Equal(t, 100, passed)
		})
	}
}

// Two releases with different layouts of records run in one proxy, in either order. Each admits
// exactly its limit, and reading the other's values never fails, so on_error never decides.
func TestAnotherLayoutBesideThisOne(t *testing.T) {
	next := buildtest.Wasm(t, "sluice_variant")
	for name, nextFirst := range map[string]bool{"upgrade": false, "rollback": true} {
		t.Run(name, func(t *testing.T) {
			store := sim.NewStore()
			shared := func(o *sim.Options) { o.Store = store }
			releases := []*bench{start(t, shared), start(t, shared, func(o *sim.Options) { o.Wasm = next })}
			if nextFirst {
				slices.Reverse(releases)
			}
			config := policy(`{"name":"r","key":[{"header":"x-user-id"}],"on_error":"allow",
				"limits":["100/366d",{"requests":120,"per":"365d","algorithm":"fixed_window_per_key"}]}`)
			passed := make([]int, 2)
			for i := range 300 { // the first has 100 requests alone
				if i == 0 || i == 100 {
					require.NoError(t, releases[i/100].Configure(config))
				}
				which := 0
				if i > 100 {
					which = i % 2
				}
				if releases[which].serve(t, 0, alice).Status == 200 {
					passed[which]++
				}
				releases[which].tick(t)
			}
			require.Equal(t, []int{100, 100}, passed)
			for _, b := range releases {
				require.Zero(t, b.Metrics()["rule=.=r;.;rate_limit_errors_total"])
				require.EqualValues(t, 100, b.Metrics()["rule=.=r;.;rate_limit_allowed_total"])
			}
		})
	}
}

// If filters with new names come and go, only the tables of the last minutes stay. A filter that
// stays keeps its counts, even if it is an older release that sends no heartbeats.
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
					o.Store = store
					o.PluginName = fmt.Sprint("filter", n)
					o.Now = func() int64 { return b.now }
				})
				require.NoError(t, c.Configure(policy(fmt.Sprintf(`{"name":"r%d","limits":["1/366d"]}`, n))))
				require.Equal(t, 200, c.serve(t, 0, alice).Status)
				for range 2 {
					b.now += directory.RoundNs + 1
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
			maxPages := 1 + (directory.MissedRounds+2)/2 + 1 + directory.WaitingTables
			require.Less(t, maxPages, names/2)
			require.LessOrEqual(t, pages, maxPages)
			require.Equal(t, 200, b.serve(t, 0, alice).Status)
			require.Equal(t, 429, b.serve(t, 0, alice).Status, "its count is kept")
		})
	}
}
