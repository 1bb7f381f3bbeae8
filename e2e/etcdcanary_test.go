//go:build etcd

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trial is a canary of the policy gate, and what befalls the serve that is to step it, or a member.
type trial struct {
	fault  string
	hasIts bool // that serve has the canary's proxy
	denies bool // too much
}

// trials are in an order in which each serve but the second is left by no Envoy until the last.
var trials = []trial{
	{"none", false, false},
	{"killed", false, false},
	{"cut off", true, true},
	{"cut off", false, false},
	{"killed", false, true},
	{"killed", true, false},
	{"member", false, true},
	{"member", false, false},
}

// try has a canary promoted or stalled by itself: by the next serve where the one that was to
// do it has gone, and by one alone.
func (s *several) try(t *testing.T, row int, tc trial) {
	leader, next := s.stand[0], s.stand[1]
	asked, what := s.serves[next], fmt.Sprintf("trial %d, %+v, serve %d", row, tc, leader)
	require.True(t, tc.fault == "member" || tc.hasIts == (s.at(t, chosenGate) == s.serves[leader].xds), what)
	limit := map[bool]string{false: "999999/", true: "10/"}[tc.denies] + far
	policy := file(t, "gate.yaml", fmt.Sprintf("%s%s%sdomain: gate-trial-%d\n", headOf("gate"), perUser(limit), managed, row))
	sluiceOK(t, "apply", "-f", policy, "--canary", "10%", "--promote-after", "4s", "--max-denied", "5%", "--server", asked.url())
	canary := asked.standings(t)["gate"]
	require.Equal(t, []string{chosenGate}, canary.Canary.Except)
	number, end := canary.Newest.Revision, s.visit(t, fmt.Sprint("user-", row))
	time.Sleep(time.Second) // in the middle of it
	begun := time.Now()
	heal := s.fault(t, leader, tc)
	if tc.fault == "cut off" && tc.hasIts { // the others do not know how it fares
		eventually(t, 30*time.Second, what+": to miss its proxy", func() bool {
			return strings.Contains(asked.standings(t)["gate"].Canary.Says, "waits: no proxy of it is connected")
		})
		heal()
	}
	is, state := &standing{}, map[bool]string{false: "promoted", true: "stalled"}[tc.denies]
	eventually(t, 40*time.Second, what+": the step to be taken", func() bool {
		is = asked.standings(t)["gate"]
		return is.Current.Revision == number || is.Canary != nil && is.Canary.State == state
	})
	end()
	t.Logf("%s: %s %s after the fault", what, state, time.Since(begun))
	by := []int{}
	for i, c := range s.serves {
		if strings.Contains(c.Log(), fmt.Sprintf("msg=\"canary %s\" revision=%d ", state, number)) {
			by = append(by, i)
		}
	}
	want := next
	if tc.fault == "none" || tc.fault == "member" {
		want = leader
	}
	require.Equal(t, []int{want}, by, what)
	bound := crowdBack
	if tc.denies {
		require.Contains(t, is.Canary.Says, "per-user denies", what)
		s.onlyIn(t, canary)
		sluiceOK(t, "abort", "--policy", "gate", "--server", asked.url())
		bound = 2 * time.Second
	}
	s.settle(t, begun, bound, what)
	heal()
}

// fault does to a serve, or to a member of etcd, what a trial says. heal ends that, once.
func (s *several) fault(t *testing.T, leader int, tc trial) (heal func()) {
	c := s.serves[leader]
	heal = func() {}
	switch tc.fault {
	case "member":
		m := s.members[s.random.IntN(3)]
		m.Kill()
		heal = m.Restart
	case "killed":
		c.kill(t)
		eventually(t, crowdBack, "its proxies to move on", func() bool {
			return !slices.ContainsFunc([]string{inTheTenth, "gate-1", chosenGate}, func(node string) bool {
				return slices.Contains([]string{"", c.xds}, s.at(t, node))
			})
		})
		heal = func() { s.standsAgain(t, leader, func() { c.start(t) }) }
	case "cut off":
		for _, g := range s.gates[leader] {
			g.hold()
		}
		eventually(t, 20*time.Second, "it to say so", func() bool {
			out, _, _ := sluice(t, "status", "--server", c.url())
			return strings.Contains(out, "NOTHING CAN BE CHANGED HERE: cut off from etcd since")
		})
		for _, command := range []string{"promote", "abort"} {
			sluiceRefuses(t, "cut off from etcd since", command, "--policy", "gate", "--server", c.url())
		}
		heal = func() {
			s.standsAgain(t, leader, func() {
				for _, g := range s.gates[leader] {
					g.open() // what it was about to write arrives late
				}
			})
		}
	}
	return sync.OnceFunc(heal)
}

// visit has somebody visit the Envoys of gate all the time until end is called.
func (s *several) visit(t *testing.T, who string) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, node := range []string{"gate-1", chosenGate} {
		all.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				_, _ = s.envoys[node].load(1).try(10, user(who))
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// at is the address of the serve at which an Envoy is, "" if it is at none.
func (s *several) at(t *testing.T, node string) string {
	clusters, err := s.envoys[node].envoy.Get(t.Context(), "/clusters")
	require.NoError(t, err)
	if m := regexp.MustCompile(`sluice_xds::([^:]+:\d+)::cx_active::1\n`).FindSubmatch(clusters); m != nil {
		return string(m[1])
	}
	return ""
}
