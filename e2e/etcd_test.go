//go:build etcd

package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

var serveRounds = flag.Int("serve-rounds", 20, "how often TestSeveralServes kills a serve or a member of etcd")

// several are three serves on three members of etcd.
type several struct {
	members servertest.Etcd
	etcd    *clientv3.Client
	serves  []*controlPlane
	gates   [][]*gate // of each serve, one before each member
	stand   []int     // serves, in the order in which they are to lead
	crowd   *crowd
	envoys  map[string]*proxy // by node id
	random  *rand.Rand
	acked   map[uint64]bool // revisions of which a command said that they were applied or promoted
	slowest time.Duration   // until proxies were right
}

func startSeveral(t *testing.T, proxies int) *several {
	seed := rand.Uint64()
	t.Log("seed", seed)
	s := &several{members: servertest.StartEtcd(t, 3), envoys: map[string]*proxy{},
		random: rand.New(rand.NewPCG(seed, 0)), acked: map[uint64]bool{}}
	var err error
	s.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{s.members[0].Addr(), s.members[1].Addr(),
		s.members[2].Addr()}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.etcd.Close() })
	for i := range 3 {
		var gates []*gate
		var hosts []string
		for _, m := range s.members {
			g := newGate(t, m.Addr())
			gates, hosts = append(gates, g), append(hosts, g.address())
		}
		c := &controlPlane{data: t.TempDir() + "/data", store: "etcd://" + strings.Join(hosts, ","), xds: freeAddress(t),
			http: freeAddress(t), flags: []string{"--wasm", built.filter}}
		s.gates, s.serves = append(s.gates, gates), append(s.serves, c)
		s.standsAgain(t, i, func() { c.start(t) })
		t.Cleanup(func() { c.kill(t) })
	}
	s.crowd = startCrowd(t, s.order(0), proxies)
	return s
}

// order are the addresses of all serves, from one on.
func (s *several) order(first int) (addresses []string) {
	for i := range s.serves {
		addresses = append(addresses, s.serves[(first+i)%len(s.serves)].xds)
	}
	return addresses
}

// standsAgain waits until a serve that comes or comes back stands for leader, behind the others.
func (s *several) standsAgain(t *testing.T, i int, comes func()) {
	last := func() int64 {
		got, err := s.etcd.Get(t.Context(), "sluice/leader/", clientv3.WithLastCreate()...)
		require.NoError(t, err)
		if len(got.Kvs) == 0 {
			return 0
		}
		return got.Kvs[0].CreateRevision
	}
	before := last()
	comes()
	eventually(t, 20*time.Second, "it to stand for leader", func() bool { return last() > before })
	s.stand = append(slices.DeleteFunc(s.stand, func(j int) bool { return i == j }), i)
}

// runs is the first serve that does.
func (s *several) runs(t *testing.T) *controlPlane {
	i := slices.IndexFunc(s.serves, func(c *controlPlane) bool { return c.Running() })
	require.GreaterOrEqual(t, i, 0, "no serve runs")
	return s.serves[i]
}

var policies = []string{"edge", "core", "default", "gate"}

// history returns the policy of each revision, and what became of its rollout.
func (s *several) history(t *testing.T) (policy, rollout map[uint64]string) {
	policy, rollout = map[uint64]string{}, map[uint64]string{}
	for _, name := range policies {
		type revision struct {
			Revision uint64
			Rollout  struct{ State string }
		}
		for _, r := range asked[struct{ Revisions []revision }](t, s.runs(t), "history", "--policy", name, "--limit",
			"0").Revisions {
			policy[r.Revision], rollout[r.Revision] = name, r.Rollout.State
		}
	}
	return policy, rollout
}

// should is what each proxy is to run.
func (s *several) should(t *testing.T) func(node string) uint64 {
	by := s.runs(t).standings(t)
	return func(node string) uint64 { return by[policyOf(node)].expects(node) }
}

// changed is when the newest change was stored.
func (s *several) changed(t *testing.T) time.Time {
	return asked[struct{ Entries []struct{ At time.Time } }](t, s.runs(t), "audit", "--limit", "1").Entries[0].At
}

// awaitRevisions waits until each proxy runs what it should, and requires that the last one did soon
// after a moment, or after the change was stored: that takes a leader of etcd.
func (s *several) awaitRevisions(t *testing.T, from time.Time, bound time.Duration, what string) {
	eventually(t, bound, what+": proxies on their revisions", func() bool {
		return s.crowd.wrong(s.should(t)) == 0
	})
	if stored := s.changed(t); stored.After(from) {
		from = stored
	}
	s.crowd.mu.Lock()
	took := s.crowd.last.Sub(from)
	s.crowd.mu.Unlock()
	t.Logf("%s: the last proxy was right after %s", what, took)
	require.Less(t, took, bound, what)
	s.slowest = max(s.slowest, took)
}

// onlyIn requires that nobody else than the proxies of a canary ever got it.
func (s *several) onlyIn(t *testing.T, canary *standing) {
	s.crowd.got(func(node string, revision uint64) {
		if revision == canary.Newest.Revision {
			require.Equal(t, revision, canary.expects(node), "%s is not in the canary of %d", node, revision)
		}
	})
}

// files are policies, each with a domain of its own.
func files(t *testing.T, round int, of ...string) (args []string) {
	for _, policy := range of {
		rules := "version: 1\nrules: []\n"
		if policy == "gate" {
			rules = perUser("1000000/"+far) + managed
		}
		args = append(args, "-f", file(t, policy+".yaml",
			fmt.Sprintf("%sdomain: %s-%d\n%s", headOf(policy), policy, round, rules)))
	}
	return args
}

// Serves and members of etcd die by kill -9 in the middle of changes, and of what becomes of
// canaries by itself; serves are cut off from etcd. No acknowledged revision is lost, no proxy
// gets one of another policy or of a canary that it is not in, and each is soon on the right one.
func TestSeveralServes(t *testing.T) {
	s := startSeveral(t, 1000)
	sluiceOK(t, append([]string{"apply", "--server", s.serves[0].url()}, files(t, 0, policies...)...)...)
	for i, node := range []string{inTheTenth, "gate-1", chosenGate} { // those of gate begin at the second serve
		s.envoys[node] = newest(t).start(t,
			proxyOptions{node: node, xds: strings.Join(s.order(min(i, 1)), ","), workers: 1, manage: freeAddress(t)})
		s.crowd.join(t, node, s.envoys[node])
	}
	eventually(t, time.Minute, "all proxies to connect", func() bool {
		return strings.Contains(body(t, s.serves[1].url()+"/metrics"), "\nsluice_proxies_connected 1003\n")
	})
	for row, tc := range trials {
		s.try(t, row, tc)
	}
	for round := range *serveRounds {
		s.round(t, round+1)
	}
	require.NotEmpty(t, s.acked)
	t.Logf("%d revisions acknowledged, proxies right at most %s after a fault", len(s.acked), s.slowest)
}

// inTheTenth is in a canary of 10% by its hash, chosenGate because no other of its policy is.
const inTheTenth, chosenGate = "core-envoy-13", "gate-2"

// round kills a serve or a member in the middle of an apply or, each third time, of the end of
// a canary.
func (s *several) round(t *testing.T, round int) {
	asked := s.serves[s.random.IntN(3)]
	args := append([]string{"apply"}, files(t, round, policies...)...)
	done := "applied"
	var canary *standing
	if round%3 == 0 {
		sluiceOK(t, append([]string{"apply", "--canary", "10%", "--server", asked.url()}, files(t, round, "core")...)...)
		canary = asked.standings(t)["core"]
		args, done = []string{"promote", "--policy", "core"}, "promoted"
		if s.random.IntN(2) == 0 {
			args[0], done = "abort", "in force again"
		}
	}
	out, errs, begun, heal := s.amid(t, append(args, "--server", asked.url(), "--wait", "20s")...)
	what := fmt.Sprintf("round %d, %s %s", round, args[0], errs)
	policy, rollout := s.history(t)
	for _, n := range regexp.MustCompile(`revision (\d+) `+done).FindAllStringSubmatch(out, -1) {
		number, err := strconv.ParseUint(n[1], 10, 64)
		require.NoError(t, err)
		s.acked[number] = true
		switch args[0] {
		case "promote":
			require.Equal(t, "promoted", rollout[number], what)
		case "abort":
			require.Equal(t, "aborted", rollout[canary.Newest.Revision], what)
		}
	}
	for n := range s.acked {
		require.Contains(t, policy, n, "an acknowledged revision is lost: "+what)
	}
	s.awaitRevisions(t, begun, crowdBack, what)
	heal()
	policy, rollout = s.history(t)
	s.crowd.got(func(node string, n uint64) { require.Equal(t, policyOf(node), policy[n], "revision %d at %s", n, node) })
	if canary != nil && rollout[canary.Newest.Revision] != "promoted" {
		s.onlyIn(t, canary)
		_, _, _ = sluice(t, "abort", "--policy", "core", "--server", s.serves[0].url()) // where it lasts
	}
}

// amid runs a command, and kills a serve or a member in the middle of it. It returns what the
// command prints, with its last error and what befell it, and when that began.
func (s *several) amid(t *testing.T, args ...string) (out, errs string, begun time.Time, heal func()) {
	var stdout, stderr bytes.Buffer
	ended := make(chan error)
	cmd := exec.CommandContext(t.Context(), built.sluice, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	go func() { ended <- cmd.Run() }()
	time.Sleep(time.Duration(s.random.IntN(200)) * time.Millisecond)
	victim := s.random.IntN(6)
	if victim < 3 {
		s.members[victim].Kill()
		heal = s.members[victim].Restart
	} else {
		s.serves[victim-3].kill(t)
		heal = func() { s.standsAgain(t, victim-3, func() { s.serves[victim-3].start(t) }) }
	}
	begun = time.Now()
	<-ended // what it says counts
	_, failed, _ := strings.Cut(stderr.String(), "error: ")
	errs = fmt.Sprintf("with %d killed ended after %s %q", victim, time.Since(begun).Round(time.Millisecond), failed)
	return stdout.String(), errs, begun, heal
}

// Two serves on one etcd that count in memory say that they let a limit over all proxies through twice,
// and what to do. With another store than memory, or a directory, they say nothing.
func TestSeveralServesCountApart(t *testing.T) {
	etcd, redis := servertest.StartEtcd(t, 1), servertest.StartRedis(t, servertest.Redis(t))
	policy := file(t, "policy.yaml", "version: 1\nrules: [{name: all, scope: cluster, limits: [10/1h]}]\n")
	const says = "this serve keeps quotas in memory, " +
		"so each serve on the store lets the whole limit of a rule of scope cluster through: " +
		"start all of them with the same --quota-store redis://HOST:PORT\n"
	for _, tc := range []struct {
		store, quotas string
		apart         bool
	}{
		{etcd.URL(), "memory", true},
		{etcd.URL(), "memory", true},
		{etcd.URL(), "redis://" + redis.Addr(), false},
		{"", "memory", false},
	} {
		c := &controlPlane{
			data: t.TempDir() + "/data", store: tc.store, xds: freeAddress(t), http: freeAddress(t),
			flags: []string{"--wasm", "/f.wasm", "--quota-store", tc.quotas},
		}
		c.start(t)
		t.Cleanup(func() { c.kill(t) })
		_, errs, _ := sluice(t, "apply", "-f", policy, "--server", c.url())
		require.Equal(t, tc.apart, strings.Contains(errs, "warning: "+says), errs)
		out, _, _ := sluice(t, "status", "--server", c.url())
		require.Equal(t, tc.apart, strings.Contains(out, "LIMITS OVER ALL PROXIES ARE NOT KEPT: "+says), out)
	}
}

// An etcd without space takes no changes until it has some again: a serve says so, also one that
// starts meanwhile, and serves what it knows.
func TestSeveralServesOnAFullEtcd(t *testing.T) {
	etcd := servertest.StartEtcd(t, 1, "--quota-backend-bytes", fmt.Sprint(4<<20))
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd[0].Addr()}})
	require.NoError(t, err)
	defer client.Close()
	c := &controlPlane{data: t.TempDir() + "/data", store: etcd.URL(), xds: freeAddress(t), http: freeAddress(t),
		flags: []string{"--wasm", "/f.wasm"}}
	c.start(t)
	t.Cleanup(func() { c.kill(t) })
	crowd := startCrowd(t, []string{c.xds}, 30)
	apply := func(round int) []string {
		return append([]string{"apply", "--server", c.url()}, files(t, round, policies...)...)
	}
	sluiceOK(t, apply(1)...)
	before := c.standings(t)
	should := func(node string) uint64 { return before[policyOf(node)].expects(node) }
	for i := 0; err == nil; i++ {
		_, err = client.Put(t.Context(), fmt.Sprint("others/", i), strings.Repeat("x", 512<<10))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	sluiceRefuses(t, "nothing is stored: etcd takes no more: etcdserver: mvcc: database space exceeded", apply(2)...)
	for range 2 {
		eventually(t, 10*time.Second, "it to say so", func() bool {
			out, _, _ := sluice(t, "status", "--server", c.url())
			return regexp.MustCompile(`NOTHING CAN BE CHANGED HERE: cut off from etcd since .*space exceeded`).MatchString(out)
		})
		require.Contains(t, body(t, c.url()+"/metrics"), "\nsluice_store_cut_off 1\n")
		late := startCrowd(t, []string{c.xds}, 3)
		eventually(t, crowdBack, "those that connect to get what it knows", func() bool { return late.wrong(should) == 0 })
		c.kill(t)
		c.start(t)
	}
	deleted, err := client.Delete(t.Context(), "others/", clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), deleted.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = client.Defragment(t.Context(), etcd[0].Addr())
	require.NoError(t, err)
	_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	require.NoError(t, err)
	eventually(t, 5*time.Second, "a change to be possible",
		func() bool { _, _, exit := sluice(t, apply(3)...); return exit == 0 })
	require.Equal(t, before["edge"].Current.Revision+4, c.standings(t)["edge"].Current.Revision,
		"what was refused is nowhere")
	eventually(t, crowdBack, "all to get it", func() bool {
		now := c.standings(t)
		return crowd.wrong(func(node string) uint64 { return now[policyOf(node)].expects(node) }) == 0
	})
}

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
	policy := file(t, "gate.yaml",
		fmt.Sprintf("%s%s%sdomain: gate-trial-%d\n", headOf("gate"), perUser(limit), managed, row))
	sluiceOK(t, "apply", "-f", policy, "--canary", "10%", "--promote-after", "4s", "--max-denied", "5%", "--server",
		asked.url())
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
	s.awaitRevisions(t, begun, bound, what)
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
