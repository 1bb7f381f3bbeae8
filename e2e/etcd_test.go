//go:build etcd

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/build/etcdtest"
	"github.com/sluice-ratelimit/sluice/envoy"
)

var serveRounds = flag.Int("serve-rounds", 20, "how often TestSeveralServes kills a serve or a member of etcd")

// crowdBack is how long proxies may take until each has the right revision.
const crowdBack = 5 * time.Second

// crowd is proxies that know all serves, and go to the next when theirs ends.
type crowd struct {
	mu   sync.Mutex
	runs map[string]uint64          // by node id
	seen map[string]map[uint64]bool // every revision that a proxy ever got
	last time.Time                  // when one got another revision
}

func startCrowd(t *testing.T, addresses []string, n int) *crowd {
	t.Helper()
	f := &crowd{runs: map[string]uint64{}, seen: map[string]map[uint64]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	t.Cleanup(func() { cancel(); ended.Wait() })
	var conns []*grpc.ClientConn
	for range n {
		for _, address := range addresses {
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			conns = append(conns, conn)
		}
	}
	for i := range n {
		node, mine := fmt.Sprintf("%s-%d", []string{"edge", "core", "rest"}[i%3], i), conns[i*len(addresses):][:len(addresses)]
		ended.Go(func() {
			held := ""
			for at := i; ctx.Err() == nil; at++ {
				_ = f.stream(ctx, mine[at%len(mine)], node, &held) // always ends in an error
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	return f
}

// stream accepts everything.
func (f *crowd) stream(ctx context.Context, conn *grpc.ClientConn, node string, held *string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn.Connect()
	s, err := extensionv3.NewExtensionConfigDiscoveryServiceClient(conn).DeltaExtensionConfigs(ctx)
	if err != nil {
		return err
	}
	next := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: resourceType, ResourceNamesSubscribe: []string{envoy.ResourceName}}
	if *held != "" {
		next.InitialResourceVersions = map[string]string{envoy.ResourceName: *held}
	}
	for {
		if err := s.Send(next); err != nil {
			return err
		}
		r, err := s.Recv()
		if err != nil {
			return err
		}
		next = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourceType, ResponseNonce: r.GetNonce()}
		*held = r.GetResources()[0].GetVersion()
		number, _, _ := strings.Cut(*held, "-")
		n, _ := strconv.ParseUint(number, 10, 64)
		f.mu.Lock()
		if f.runs[node] != n {
			f.last = time.Now()
		}
		if f.runs[node] = n; f.seen[node] == nil {
			f.seen[node] = map[uint64]bool{}
		}
		f.seen[node][n] = true
		f.mu.Unlock()
	}
}

const resourceType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// policyOf is the policy of a node of the crowd.
func policyOf(node string) string {
	policy, _, _ := strings.Cut(node, "-")
	return strings.Replace(policy, "rest", "default", 1)
}

// wrong counts the proxies that do not run the newest revision of their policy.
func (f *crowd) wrong(newest map[string]uint64) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for node, runs := range f.runs {
		if runs != newest[policyOf(node)] {
			n++
		}
	}
	return n
}

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
			out, errs, exit := sluice(t, "history", "--policy", policy, "--server", c.url(), "-o", "json")
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

// files are the three policies, each with a domain of its own.
func files(t *testing.T, round int) (args []string) {
	t.Helper()
	for _, policy := range []string{"edge", "core", "default"} {
		head := ""
		if policy != "default" {
			head = fmt.Sprintf("name: %s\nproxies: {node: \"%s-*\"}\n", policy, policy)
		}
		args = append(args, "-f", file(t, policy+".yaml", fmt.Sprintf("version: 1\n%sdomain: %s-%d\nrules: []\n", head, policy, round)))
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
			func() bool { return s.crowd.wrong(newest) == 0 })
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
	eventually(t, crowdBack, "a proxy that connects meanwhile to get its policy", func() bool {
		late.mu.Lock()
		n := len(late.runs)
		late.mu.Unlock()
		return n == 3 && late.wrong(newest) == 0
	})
	s.members[0].Continue()
	s.members[1].Continue()
	eventually(t, 20*time.Second, "a change to be possible", func() bool {
		_, _, exit := sluice(t, append([]string{"apply", "--server", s.serves[2].url()}, files(t, 2)...)...)
		return exit == 0
	})
	newest, _ = s.history(t)
	eventually(t, crowdBack, "all to get it", func() bool { return s.crowd.wrong(newest) == 0 })
}
