//go:build long

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	fleetRounds = flag.Int("fleet-rounds", 6, "changes of policies, of which half see serve killed")
	fleetSeed   = flag.Uint64("fleet-seed", 1, "begins what happens in the rounds")
)

// fleet is a crowd and some Envoys, in three policies of one control plane.
type fleet struct {
	*controlPlane
	crowd   *crowd
	envoys  []string // node ids
	random  *rand.Rand
	limit   int
	applied map[string][]uint64 // by policy: revisions that a command said were
	slowest time.Duration       // from a change, or the return of serve, until all had what they should
}

// next is a text that the policy has not had yet.
func (f *fleet) next(policy string) string {
	f.limit++
	return headOf(policy) + fmt.Sprintf("version: 1\nrules: [{name: all, match: {paths: [/all]}, limits: [%d/1h]}]\n", f.limit)
}

// settle waits until each proxy runs what it should.
func (f *fleet) settle(t *testing.T, what string) {
	began := time.Now()
	eventually(t, crowdBack, what+": all proxies to run what they should", func() bool {
		by, proxies := f.standings(t), f.proxies(t)
		should := func(node string) uint64 { return by[policyOf(node)].expects(node) }
		return f.crowd.wrong(should) == 0 && !slices.ContainsFunc(f.envoys, func(node string) bool {
			return !proxies[node].Connected || proxies[node].Runs != should(node)
		})
	})
	f.slowest = max(f.slowest, time.Since(began))
	t.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
}

// change is something to do with a random policy. It says what became of it.
func (f *fleet) change(t *testing.T) func() (what string) {
	policy := []string{"core", "default", "edge"}[f.random.IntN(3)]
	args, applies := []string{"promote", "--policy", policy}, false
	switch canary := f.standings(t)[policy].Canary != nil; {
	case canary && f.random.IntN(2) == 0:
		args[0] = "abort"
	case canary:
	case f.random.IntN(4) == 0:
		args[0], applies = "rollback", true
	default:
		args, applies = []string{"apply", "-f", file(t, "policy.yaml", f.next(policy))}, true
		if f.random.IntN(2) == 0 {
			args = append(args, "--canary", "10%")
		}
	}
	return func() string {
		out, _, exit := sluice(t, append(args, "--server", f.url(), "--wait", "20s", "-o", "json")...)
		if exit == 0 && applies {
			var done struct{ Revision uint64 }
			require.NoError(t, json.Unmarshal([]byte(out), &done), out)
			f.applied[policy] = append(f.applied[policy], done.Revision)
		}
		return fmt.Sprintf("%s of %s, exit %d", args[0], policy, exit)
	}
}

// TestFleet: whatever is applied, tried, promoted, aborted and rolled back, and whenever serve is
// killed, each proxy comes to run the revision of its own policy that it should, and never one of
// another; and no revision is lost that a command said was applied.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := &fleet{controlPlane: startControlPlane(t), random: rand.New(rand.NewPCG(*fleetSeed, 1)), applied: map[string][]uint64{}}
	policies := []string{"default", "edge", "core"}
	for _, policy := range policies {
		f.apply(t, f.next(policy), "--wasm", built.filter)
	}
	f.crowd = startCrowd(t, []string{f.xds}, 1000)
	for _, node := range []string{"edge-real", "core-real-1", "core-real-2", "rest-real"} {
		f.crowd.join(t, node, newest(t).start(t, proxyOptions{node: node, xds: f.xds, workers: 1}))
		f.envoys = append(f.envoys, node)
	}
	f.settle(t, "all connect")
	f.slowest = 0
	for round := range *fleetRounds {
		change := f.change(t)
		if round%2 == 0 {
			f.settle(t, change())
			continue
		}
		killed, after := make(chan struct{}), time.Duration(f.random.IntN(400))*time.Millisecond
		go func() {
			defer close(killed)
			time.Sleep(after)
			_ = f.Kill()
		}()
		what := change()
		<-killed
		f.start(t)
		f.settle(t, what+fmt.Sprintf(", killed after %s", after))
	}
	for _, policy := range policies {
		var has []uint64
		for _, r := range asked[struct{ Revisions []struct{ Revision uint64 } }](t, f.controlPlane, "history", "--policy", policy).Revisions {
			has = append(has, r.Revision)
		}
		require.Subset(t, has, f.applied[policy], policy)
		f.crowd.got(func(node string, revision uint64) {
			if policyOf(node) == policy {
				require.Contains(t, has, revision, "%s got a revision of another policy", node)
			}
		})
	}
	t.Logf("the slowest was settled after %s", f.slowest)
}
