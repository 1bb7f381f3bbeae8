package main_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// Two releases whose records have different layouts run in one proxy, in either order.
// Each admits its limit and no more, and reading the other's values never fails, so
// on_error decides for nobody.
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
