//go:build long

package e2e

import (
	"crypto/sha256"
	endian "encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/xdstest"
)

var (
	fleetRounds = flag.Int("fleet-rounds", 6, "changes of policies, of which half see serve killed")
	fleetSeed   = flag.Uint64("fleet-seed", 1, "begins what happens in the rounds")
)

const fleetSize = 1000

// member is a simulated proxy that takes whatever it is sent.
type member struct {
	node string

	mu    sync.Mutex
	holds uint64   // the revision
	had   []uint64 // all revisions
}

func (m *member) takes(version string) {
	text, _, _ := strings.Cut(version, "-")
	number, _ := strconv.ParseUint(text, 10, 64)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds, m.had = number, append(m.had, number)
}

// fleet is many proxies of one control plane, in three policies.
type fleet struct {
	*controlPlane
	members []*member
	real    []string // node ids of Envoys
	random  *rand.Rand
	limit   int
	kept    map[string][]uint64 // by policy: revisions that a command said were applied
	slowest time.Duration       // from a change, or the return of serve, until all had what they should
}

var fleetPolicies = map[string]string{"edge": "name: edge\nproxies: {node: \"edge-*\"}\n", "core": "name: core\nproxies: {node: \"core-*\"}\n", "default": ""}

// next is a text that the policy has not had yet.
func (f *fleet) next(name string) string {
	f.limit++
	return fleetPolicies[name] + fmt.Sprintf("version: 1\nrules: [{name: all, match: {paths: [/all]}, limits: [%d/1h]}]\n", f.limit)
}

// of is the policy that is for a node.
func of(node string) string {
	name, _, _ := strings.Cut(node, "-")
	return name
}

// standing is what `sluice status` prints of a policy.
type standing struct {
	Policy  string
	Current struct{ Revision uint64 }
	Newest  struct{ Revision uint64 }
	Canary  *struct {
		Percent float64
		Node    string
	}
}

// expects is the revision that a node is to run.
func (s *standing) expects(node string) uint64 {
	if s.Canary == nil {
		return s.Current.Revision
	}
	hash := sha256.Sum256([]byte(node))
	if place := float64(endian.BigEndian.Uint64(hash[:])>>11) / (1 << 53) * 100; node == s.Canary.Node || place < s.Canary.Percent {
		return s.Newest.Revision
	}
	return s.Current.Revision
}

func (f *fleet) ask(t *testing.T, into any, args ...string) {
	t.Helper()
	out, errs, exit := sluice(t, append(args, "--server", f.url(), "-o", "json")...)
	require.Zero(t, exit, "%v: %s", args, errs)
	require.NoError(t, json.Unmarshal([]byte(out), into))
}

func (f *fleet) standings(t *testing.T) map[string]*standing {
	t.Helper()
	var status struct{ Policies []*standing }
	f.ask(t, &status, "status")
	by := map[string]*standing{}
	for _, s := range status.Policies {
		by[s.Policy] = s
	}
	return by
}

// settle waits until each proxy runs what it should, and requires that in 5 s.
func (f *fleet) settle(t *testing.T, what string) {
	t.Helper()
	began := time.Now()
	wrong := ""
	defer func() { t.Logf("%s: %s %s", what, time.Since(began).Round(time.Millisecond), wrong) }()
	eventually(t, 5*time.Second, "all proxies to run what they should", func() bool {
		by := f.standings(t)
		wrong = ""
		for _, m := range f.members {
			m.mu.Lock()
			holds := m.holds
			m.mu.Unlock()
			if want := by[of(m.node)].expects(m.node); holds != want {
				wrong = fmt.Sprintf("%s: %s holds %d, not %d", what, m.node, holds, want)
				return false
			}
		}
		proxies := f.proxies(t)
		for _, node := range f.real {
			if p, want := proxies[node], by[of(node)].expects(node); !p.Connected || p.Runs != want {
				wrong = fmt.Sprintf("%s: %s runs %d, not %d", what, node, p.Runs, want)
				return false
			}
		}
		return true
	})
	f.slowest = max(f.slowest, time.Since(began))
}

// change is something to do with a random policy. It says what became of it.
func (f *fleet) change(t *testing.T) func() (what string) {
	t.Helper()
	names := []string{"core", "default", "edge"}
	name := names[f.random.IntN(len(names))]
	args, applies := []string{"promote", "--policy", name}, false
	switch canary := f.standings(t)[name].Canary != nil; {
	case canary && f.random.IntN(2) == 0:
		args[0] = "abort"
	case canary:
	case f.random.IntN(4) == 0:
		args[0], applies = "rollback", true
	default:
		args, applies = []string{"apply", "-f", file(t, "policy.yaml", f.next(name))}, true
		if f.random.IntN(2) == 0 {
			args = append(args, "--canary", "10%")
		}
	}
	return func() string {
		out, _, exit := sluice(t, append(args, "--server", f.url(), "--wait", "20s", "-o", "json")...)
		if exit == 0 && applies {
			var done struct{ Revision uint64 }
			require.NoError(t, json.Unmarshal([]byte(out), &done), out)
			f.kept[name] = append(f.kept[name], done.Revision)
		}
		return fmt.Sprintf("%s of %s, exit %d", args[0], name, exit)
	}
}

// TestFleet: whatever is applied, tried, promoted, aborted and rolled back, and whenever serve is
// killed, each proxy comes to run the revision of its own policy that it should, and never one of
// another; and no revision is lost that a command said was applied.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := &fleet{controlPlane: startControlPlane(t), random: rand.New(rand.NewPCG(*fleetSeed, 1)), kept: map[string][]uint64{}}
	for _, name := range []string{"default", "edge", "core"} {
		f.apply(t, f.next(name), "--wasm", built.filter)
	}
	for _, node := range []string{"edge-real", "core-real-1", "core-real-2", "default-real"} {
		newest(t).start(t, proxyOptions{node: node, xds: f.xds, workers: 1})
		f.real = append(f.real, node)
	}
	for i := range fleetSize {
		m := &member{node: fmt.Sprintf("%s-%04d", []string{"edge", "core", "default"}[i%3], i)}
		xdstest.Follow(t, f.xds, m.node, 200*time.Millisecond, m.takes)
		f.members = append(f.members, m)
	}
	f.settle(t, "all connect")
	f.slowest = 0
	for round := range *fleetRounds {
		if round%2 == 0 {
			f.settle(t, f.change(t)())
			continue
		}
		change, killed := f.change(t), make(chan struct{})
		after := time.Duration(f.random.IntN(400)) * time.Millisecond
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
	for name := range fleetPolicies {
		var history struct{ Revisions []struct{ Revision uint64 } }
		f.ask(t, &history, "history", "--policy", name)
		var has []uint64
		for _, r := range history.Revisions {
			has = append(has, r.Revision)
		}
		require.Subset(t, has, f.kept[name], name)
		for _, m := range f.members {
			if of(m.node) == name {
				require.Subset(t, has, m.had, "%s got a revision of another policy", m.node)
			}
		}
	}
	t.Logf("the slowest was settled after %s", f.slowest)
}
