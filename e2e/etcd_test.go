//go:build etcd

package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/etcdtest"
)

var serveRounds = flag.Int("serve-rounds", 20, "how often TestSeveralServes kills a serve or a member of etcd")

// several are three serves on three members of etcd.
type several struct {
	members etcdtest.Cluster
	serves  []*controlPlane
	crowd   *crowd
	stored  time.Time // when the newest revision was, as far as history was read
}

func startSeveral(t *testing.T, proxies int) *several {
	t.Helper()
	s := &several{members: etcdtest.Start(t, 3)}
	var addresses []string
	for range 3 {
		c := &controlPlane{data: t.TempDir() + "/data", store: s.members.URL(), xds: freeAddress(t), http: freeAddress(t), flags: []string{"--wasm", "/f.wasm"}}
		c.start(t)
		t.Cleanup(func() { c.kill(t) })
		s.serves, addresses = append(s.serves, c), append(addresses, c.xds)
	}
	s.crowd = startCrowd(t, addresses, proxies)
	return s
}

// history returns the newest revisions of each policy and the policy of each revision,
// as the first serve that runs has them.
func (s *several) history(t *testing.T) (newest map[string]uint64, policies map[uint64]string) {
	t.Helper()
	newest, policies = map[string]uint64{}, map[uint64]string{}
	for _, c := range s.serves {
		if !c.Running() {
			continue
		}
		for _, policy := range []string{"edge", "core", "default"} {
			out, errs, exit := sluice(t, "history", "--policy", policy, "--limit", "0", "--server", c.url(), "-o", "json")
			require.Zero(t, exit, errs)
			var list struct {
				Revisions []struct {
					Revision uint64
					Created  time.Time
				}
			}
			require.NoError(t, json.Unmarshal([]byte(out), &list))
			for _, r := range list.Revisions {
				policies[r.Revision] = policy
				if newest[policy] = max(newest[policy], r.Revision); r.Created.After(s.stored) {
					s.stored = r.Created
				}
			}
		}
		return newest, policies
	}
	require.Fail(t, "no serve runs")
	return nil, nil
}

// should is the newest revision of each node's policy.
func should(newest map[string]uint64) func(node string) uint64 {
	return func(node string) uint64 { return newest[policyOf(node)] }
}

// files are the three policies, each with a domain of its own.
func files(t *testing.T, round int) (args []string) {
	t.Helper()
	for _, policy := range []string{"edge", "core", "default"} {
		args = append(args, "-f", file(t, policy+".yaml", fmt.Sprintf("version: 1\n%sdomain: %s-%d\nrules: []\n", headOf(policy), policy, round)))
	}
	return args
}

// A serve or a member of etcd dies by kill -9 in the middle of each apply: no acknowledged
// revision is lost, no proxy gets one of another policy, and each is soon on the right one.
func TestSeveralServes(t *testing.T) {
	s := startSeveral(t, 1000)
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	_, errs, exit := sluice(t, append([]string{"apply", "--server", s.serves[0].url()}, files(t, 0)...)...)
	require.Zero(t, exit, errs)
	eventually(t, time.Minute, "all proxies to connect", func() bool {
		return strings.Contains(body(t, s.serves[1].url()+"/metrics"), "\nsluice_proxies_connected 1000\n")
	})
	acknowledged := map[uint64]bool{}
	slowest, failures := time.Duration(0), []string{}
	for round := range *serveRounds {
		asked := s.serves[random.IntN(3)]
		var stdout, stderr bytes.Buffer
		applied := make(chan error)
		args := append([]string{"apply", "--server", asked.url(), "--wait", "20s"}, files(t, round+1)...)
		cmd := exec.CommandContext(t.Context(), built.sluice, args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		go func() { applied <- cmd.Run() }()
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		victim := random.IntN(6)
		if victim < 3 {
			s.members[victim].Kill()
		} else {
			s.serves[victim-3].kill(t)
		}
		begun := time.Now()
		<-applied // what it says counts
		out, errs := stdout.String(), stderr.String()
		for _, line := range strings.Split(out, "\n") {
			if number, ok := strings.CutSuffix(line[strings.LastIndex(line, "revision ")+1:], " applied"); ok {
				n, err := strconv.ParseUint(strings.TrimPrefix(number, "evision "), 10, 64)
				require.NoError(t, err, line)
				acknowledged[n] = true
			}
		}
		if _, failed, has := strings.Cut(errs, "error: "); has {
			failures = append(failures, failed)
		}
		waited := time.Since(begun)
		newest, policies := s.history(t)
		for n := range acknowledged {
			require.Contains(t, policies, n, "round %d: an acknowledged revision is lost: %s", round, errs)
		}
		eventually(t, crowdBack, fmt.Sprint("round ", round, ", victim ", victim, ": proxies on their revisions"),
			func() bool { return s.crowd.wrong(should(newest)) == 0 })
		s.crowd.mu.Lock()
		from := begun // or when the revision was stored: that takes a leader of etcd
		if s.stored.After(from) {
			from = s.stored
		}
		took := s.crowd.last.Sub(from)
		s.crowd.mu.Unlock()
		t.Logf("round %d: killed %d, asked serve %s, apply ended after %s, the last proxy was right after %s", round, victim, asked.http, waited, took)
		require.Less(t, took, crowdBack, "round %d, victim %d", round, victim)
		slowest = max(slowest, took)
		if victim < 3 {
			s.members[victim].Restart()
		} else {
			s.serves[victim-3].start(t)
		}
		_, policies = s.history(t)
		for node, numbers := range maps.All(s.crowd.seen) {
			for n := range numbers {
				require.Equal(t, policyOf(node), policies[n], "revision %d at %s", n, node)
			}
		}
	}
	require.NotEmpty(t, acknowledged)
	t.Logf("%d revisions acknowledged in %d rounds, proxies right at most %s after a kill; what apply failed with: %q", len(acknowledged), *serveRounds, slowest, failures)
}

// Serves that most members of etcd do not answer serve what they know, refuse changes, and
// say so.
func TestSeveralServesCutOff(t *testing.T) {
	s := startSeveral(t, 30)
	_, errs, exit := sluice(t, append([]string{"apply", "--server", s.serves[0].url()}, files(t, 0)...)...)
	require.Zero(t, exit, errs)
	newest, _ := s.history(t)
	s.members[0].Stop()
	s.members[1].Stop()
	for _, c := range s.serves {
		eventually(t, 20*time.Second, "it to say so", func() bool {
			out, _, _ := sluice(t, "status", "--server", c.url())
			return strings.Contains(out, "NOTHING CAN BE CHANGED HERE: cut off from etcd since")
		})
		require.Contains(t, body(t, c.url()+"/metrics"), "\nsluice_store_cut_off 1\n")
		require.True(t, answered(c.url()+"/healthz"))
		begun := time.Now()
		_, errs, exit := sluice(t, append([]string{"apply", "--server", c.url()}, files(t, 1)...)...)
		require.Equal(t, 1, exit)
		require.Contains(t, errs, "cut off from etcd since")
		require.Less(t, time.Since(begun), 2*time.Second)
	}
	late := startCrowd(t, []string{s.serves[2].xds}, 3)
	eventually(t, crowdBack, "a proxy that connects meanwhile to get its policy", func() bool { return late.wrong(should(newest)) == 0 })
	s.members[0].Continue()
	s.members[1].Continue()
	eventually(t, 20*time.Second, "a change to be possible", func() bool {
		_, _, exit := sluice(t, append([]string{"apply", "--server", s.serves[2].url()}, files(t, 2)...)...)
		return exit == 0
	})
	newest, _ = s.history(t)
	eventually(t, crowdBack, "all to get it", func() bool { return s.crowd.wrong(should(newest)) == 0 })
}
