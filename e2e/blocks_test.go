package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// blockedLogins is a policy with one rule, for failed logins, with these limits and this block.
func blockedLogins(limits, block string) string {
	return "version: 1\nheaders: ietf\n" + managed + `rules:
  - name: logins
    match: {paths: [/login]}
    key: [{header: x-user-id}]
    limits: [` + limits + `/` + far + `]
    settle: {when: {status: [401]}}
` + block
}

// TestBlocks: five failed logins are let through, the sixth is denied, and blocks its key in all
// workers. It stays blocked when a policy raises the limit or changes the block, until one has no
// block or the key is reset. A block that each denial prolongs begins anew.
func TestBlocks(t *testing.T) {
	t.Parallel()
	everyProxy(t, func(t *testing.T, d driver) {
		control, upstream := startControlPlane(t), startAnswering(t)
		p := d.start(t, proxyOptions{node: "edge", xds: control.xds, upstream: upstream.URL})
		control.awaitConnected(t, "edge")
		login := func(user string) *http.Response {
			res, _ := p.get(t, "/login", "x-user-id", user, "x-do", "401")
			return res
		}
		fail := func(user string, times int) {
			for range times {
				require.Equal(t, http.StatusUnauthorized, login(user).StatusCode)
			}
			used(t, p, "logins&key="+user)
		}
		requireBlocked := func(user string) (seconds int) {
			res := login(user)
			require.Equal(t, denied, res.StatusCode)
			_, after, found := strings.Cut(res.Header.Get("ratelimit"), `"logins";r=0;t=`)
			require.True(t, found, res.Header)
			seconds, err := strconv.Atoi(after)
			require.NoError(t, err)
			return seconds
		}
		control.apply(t, blockedLogins("5", "    block: 1h\n"))
		fail("alice", 5)
		require.Equal(t, 3600, requireBlocked("alice"))
		fail("bob", 1)

		control.apply(t, blockedLogins("100", "    block: {for: 2h}\n"))
		for range 4 * workers {
			seconds := requireBlocked("alice")
			require.True(t, seconds <= 3600 && seconds > 1800, seconds)
		}
		left := p.operate(t, "get", "rule=logins&key=alice").BlockedNs
		require.Positive(t, left)
		require.Less(t, left, int64(time.Hour))
		begun := func() uint64 {
			n, _ := p.metric(t, "rate_limit_blocks_begun_total", "logins")
			return n
		}
		eventually(t, 20*time.Second, "the block to be counted", func() bool { return begun() == 1 })

		control.apply(t, blockedLogins("100", "    block: {for: 2h, prolong: true}\n"))
		require.Equal(t, 7200, requireBlocked("alice"))
		require.EqualValues(t, 1, p.operate(t, "reset", "rule=logins&key=alice").Value)
		fail("alice", 1)

		control.apply(t, blockedLogins("1", "    block: 1h\n"))
		require.Equal(t, 3600, requireBlocked("alice"))
		control.apply(t, blockedLogins("100", ""))
		fail("alice", 1)
	})
}

// TestBlocksOverAllProxies: three Envoys ask two quota services on one Redis. Five failed logins are let through, on
// whichever Envoy, and the sixth blocks the address on all of them, for as long as the policy said then: also over
// restarts of both services, and policies that change the limit and the block. Reset lifts it.
func TestBlocksOverAllProxies(t *testing.T) {
	t.Parallel()
	store := "redis://" + servertest.StartRedis(t, servertest.Redis(t)).Addr()
	pair, upstream := startPair(t, store, 3), startAnswering(t)
	control := startControlPlane(t, "--quota-store", store)
	b := &blocksRig{t: t, control: control}
	for i := range pair.gates {
		b.proxies = append(b.proxies, control.proxy(t, newest(t), proxyOptions{
			node: fmt.Sprint("edge-", i), quota: pair.gates[i].address(), manage: freeAddress(t), upstream: upstream.URL,
		}))
	}
	b.apply("5", "1h")
	b.fail("alice", 5)
	b.requireBlocked("alice", time.Hour)
	counted := b.control.counters(t, "get", "--rule", "logins", "--key", "alice").Quota
	left := time.Duration(counted.BlockedMs) * time.Millisecond
	require.True(t, left > 50*time.Minute && left <= time.Hour, left)
	for _, command := range [][]string{{"counters", "find", "--client-ip", "192.0.2.1"}, {"explain", "--path", "/login"}} {
		says := sluiceOK(t, append(command, "--header", "x-user-id=alice", "--server", control.url())...)
		require.Contains(t, says, "blocked for 5")
		require.Contains(t, says, "denied")
	}

	for _, s := range pair.services {
		s.stop(t)
		s.start(t)
		b.requireBlocked("alice", time.Hour)
	}
	for _, s := range pair.services {
		s.kill()
	}
	for _, s := range pair.services {
		s.start(t)
	}
	b.apply("100", "2h")
	b.requireBlocked("alice", time.Hour)
	require.EqualValues(t, 1, b.begun())

	sluiceOK(t, "counters", "reset", "--rule", "logins", "--key", "alice", "--server", control.url())
	b.eventuallyLetIn("alice")
	b.apply("5", "3s")
	b.fail("bob", 5)
	began := time.Now()
	b.requireBlocked("bob", 3*time.Second)
	b.apply("100", "3s")
	b.eventuallyLetIn("bob")
	require.GreaterOrEqual(t, time.Since(began), 3*time.Second)
}

// blocksRig is some proxies with a rule for failed logins.
type blocksRig struct {
	t       *testing.T
	control *controlPlane
	proxies []*proxy
}

func (b *blocksRig) apply(limits, block string) {
	rule := blockedLogins(limits, "    block: "+block+"\n")
	rule = strings.Replace(rule, "key:", "scope: cluster\n    on_unavailable: deny\n    key:", 1)
	b.control.apply(b.t, strings.Replace(rule, "version: 1\n", "version: 1\nquota: {timeout: 5s}\n", 1))
}

func (b *blocksRig) login(i int, user string) *http.Response {
	res, _ := b.proxies[i%len(b.proxies)].get(b.t, "/login", "x-user-id", user, "x-do", "401")
	return res
}

// fail has logins fail on each proxy in turn, until all are counted.
func (b *blocksRig) fail(user string, times int) {
	for i := range times {
		require.Equal(b.t, http.StatusUnauthorized, b.login(i, user).StatusCode)
	}
	eventually(b.t, 10*time.Second, "failed logins to be counted", func() bool {
		q := b.control.counters(b.t, "get", "--rule", "logins", "--key", user).Quota
		return int(q.Windows[0].Used) == times && *q.Held == 0
	})
}

// requireBlocked requires that each proxy denies the user, and says how long that is: most at most, and more than 0.
func (b *blocksRig) requireBlocked(user string, most time.Duration) {
	b.t.Helper()
	for i := range 4 * len(b.proxies) {
		res := b.login(i, user)
		require.Equal(b.t, denied, res.StatusCode)
		_, after, found := strings.Cut(res.Header.Get("ratelimit"), `"logins";r=0;t=`)
		require.True(b.t, found, res.Header)
		seconds, err := strconv.Atoi(after)
		require.NoError(b.t, err)
		require.LessOrEqual(b.t, time.Duration(seconds)*time.Second, most)
		if most == time.Hour {
			require.Greater(b.t, seconds, 1800)
		}
	}
}

// eventuallyLetIn waits until each proxy lets a login of the user through.
func (b *blocksRig) eventuallyLetIn(user string) {
	for i := range b.proxies {
		eventually(b.t, 10*time.Second, "the block to end", func() bool {
			return b.login(i, user).StatusCode == http.StatusUnauthorized
		})
	}
}

// begun is how many blocks all proxies have counted.
func (b *blocksRig) begun() (n uint64) {
	for _, p := range b.proxies {
		own, _ := p.metric(b.t, "rate_limit_blocks_begun_total", "logins")
		n += own
	}
	return n
}
