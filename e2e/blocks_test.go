package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
