//go:build long

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A proxy with two control planes, the second of them restored from a backup of the
// first, goes to the one that is there. Limits and counters stay on meanwhile.
func TestNextControlPlane(t *testing.T) {
	t.Parallel()
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			first := startControlPlane(t)
			first.apply(t, perUser("3/"+far))
			dir := t.TempDir()
			backup := filepath.Join(dir, "backup")
			_, errs, exit := sluice(t, "store", "backup", "-o", backup, "--server", first.url())
			require.Zero(t, exit, errs)
			_, errs, exit = sluice(t, "store", "restore", backup, "--data", filepath.Join(dir, "data"))
			require.Zero(t, exit, errs)
			second := newControlPlane(t, dir)
			t.Cleanup(func() { second.kill(t) })

			p := d.start(t, proxyOptions{node: "edge", xds: first.xds + "," + second.xds})
			runs := func(c *controlPlane, revision uint64) {
				eventually(t, time.Minute, "the proxy to run the revision", func() bool {
					edge := c.proxies(t)["edge"]
					return edge.Connected && edge.Runs == revision && !edge.Waiting
				})
			}
			get := func() int { return p.status(t, "/", "x-user-id", "alice") }
			runs(first, 1)
			require.False(t, second.proxies(t)["edge"].Connected, "the first that answers has it")
			require.Equal(t, []int{200, 200}, []int{get(), get()})

			first.kill(t)
			require.Equal(t, []int{200, 429}, []int{get(), get()}, "with no control plane")
			runs(second, 1)
			require.Equal(t, 429, get(), "with the restored one")
			second.apply(t, perUser("5/"+far))
			require.Equal(t, []int{200, 200, 429}, []int{get(), get(), get()}, "its next revision keeps the counters")

			first.start(t)
			second.kill(t)
			runs(first, 2)
			out, errs, exit := sluice(t, "status", "--server", first.url())
			require.Zero(t, exit, errs)
			require.Contains(t, out, "THIS SERVE IS BEHIND 1 CONNECTED PROXY")
			require.Equal(t, 429, get(), "back at the first, which does not take the newer limit back")
			first.apply(t, perUser("6/"+far))
			runs(first, 3)
			require.Equal(t, []int{200, 429}, []int{get(), get()}, "its next revision replaces that")
		})
	}
}
