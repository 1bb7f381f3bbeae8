package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const hostileLimits = `
version: 1
headers: both
` + managed + `rules:
  - {name: alice, match: {headers: {x-user-id: alice}}, key: [{header: x-user-id}], algorithm: sliding_window_log, limits: [5/` + far + `]}
  - name: everything
    match: {headers: {x-user-id: "!"}}
    key: [{header: k}, {query: q}, {cookie: c}, client_ip, host, method, {path: full}, {path: {segment: 2}}]
    missing_key: share
    capacity: 64
    cost: {header: x-cost, max: 5}
    limits: [9/` + far + `, {requests: 9, per: 1d, algorithm: sliding_window_counter}]
    overrides: [{key: ["~(a|b|[^a-z])*", "*", "*", "*", "*", "*", "*", "*"], limits: [1000/` + far + `]}]
    response: {headers: {x-left: "%REMAINING% of %LIMIT%"}}
`

// hostileHeads returns malformed and oversized heads of requests.
func hostileHeads() (heads []string) {
	head := func(target string, lines ...string) {
		heads = append(heads, "GET "+target+" HTTP/1.1\r\nhost: h\r\n"+strings.Join(append(lines, "", ""), "\r\n"))
	}
	many := make([]string, 97)
	for i := range many {
		many[i] = fmt.Sprintf("h%d: %s", i, strings.Repeat("ab", 200))
	}
	long := strings.Repeat("k", 10_000)
	head("/", "big: "+strings.Repeat("ab", 29_500))
	head("/", "big: "+strings.Repeat("ab", 40_000))
	head("/", many...)
	head("/", slices.Concat(many, many)...)
	head("/", "k: "+long)
	head("/", "k: "+long, "k: "+long)
	head("/?q="+long, "cookie: c="+long)
	head("/" + strings.Repeat("/x", 4000))
	head("/" + strings.Repeat("%ff", 3000))
	head("/\xff\xfe", "k: \xff\xfe\xf0")
	head("/", "k: \xff\xfe\xc3(", "cookie: c=\xff")
	head("/", "k: a\x00b")
	head("/", "k: a\x01b\x7f")
	head("*")
	head("no-slash")
	head("/", "cookie: "+strings.Repeat("c;", 20_000))
	head("/?" + strings.Repeat("q=%zz&%71=%&", 2000))
	head("/.sluice/counters/set?rule=alice&key=alice&n=0", "authorization: Bearer "+long)
	head("/.sluice/counters/%2e%2e/stats?%zz", "authorization: "+bearer)
	for _, cost := range []string{"", "-1", "+1", "0", "1e99", "0x7", strings.Repeat("9", 20_000), "١", "5,5", "NaN", "4294967296", "18446744073709551617"} {
		head("/", "x-cost: "+cost, "k: cost")
	}
	heads = append(heads, "GET / HTTP/1.1\r\nhost: \xff[::\r\n\r\n", "G\x00T / HTTP/1.1\r\nhost: h\r\n\r\n", "OPTIONS * HTTP/1.1\r\nhost: :\r\n\r\n")
	return heads
}

// exchange sends a head on a new connection and returns the response, nil if the
// connection was closed without one.
func (p *proxy) exchange(t *testing.T, head string) *http.Response {
	c, err := net.Dial("tcp", p.address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, _ = c.Write([]byte(head)) // the proxy may close the connection first
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "no response: %.80q", head)
		return nil
	}
	res.Body.Close()
	return res
}

// statusOf is the status of the response to a head, 0 if there is none.
func (p *proxy) statusOf(t *testing.T, head string) int {
	if res := p.exchange(t, head); res != nil {
		return res.StatusCode
	}
	return 0
}

// A hostile request changes nothing but its own verdict. The usage of an honest client
// and the times in its log stay the same, and the proxy's memory does not grow.
func TestHostileRequests(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		p := d.listen(t, proxyOptions{policy: hostileLimits})
		for range 2 {
			require.Equal(t, allowed, p.status(t, "/", "x-user-id", "alice"))
		}
		mine := func() operation {
			o := p.operate(t, "get", "rule=alice&key=alice")
			for i := range o.Windows {
				o.Windows[i].ResetNs = 0 // changes with time
			}
			return o
		}
		expires := p.operate(t, "expires_at", "rule=alice&key=alice").Value
		before := mine()
		require.EqualValues(t, 2, before.Value)
		stats := p.operate(t, "stats", "rule=alice").Rules[0]

		statuses := map[int]int{}
		attack := func(rounds int) {
			for range rounds {
				for _, head := range hostileHeads() {
					statuses[p.statusOf(t, head)]++
				}
			}
		}
		attack(5) // lets buffers, VMs and the table grow to their size
		warm := p.resident(t)
		attack(20)
		t.Log("responses by status:", statuses)
		for status := range statuses {
			require.Contains(t, []int{0, 200, 307, 400, 401, 404, 405, 414, 429, 431}, status)
		}
		require.Greater(t, statuses[allowed]+statuses[denied], 200, "too few requests reached the filter")

		require.Equal(t, before, mine())
		require.Equal(t, expires, p.operate(t, "expires_at", "rule=alice&key=alice").Value, "the log's entries are the same")
		after := p.operate(t, "stats", "rule=alice").Rules[0]
		require.Equal(t, []uint64{stats.Keys, stats.Bytes}, []uint64{after.Keys, after.Bytes})
		require.LessOrEqual(t, p.operate(t, "stats", "rule=everything").Rules[0].Keys, uint64(128))
		for i, want := range []int{allowed, allowed, allowed, denied} {
			require.Equal(t, want, p.status(t, "/", "x-user-id", "alice"), "honest request %d", i)
		}
		p.noTraps(t)
		grown := p.resident(t) - warm
		t.Logf("memory has grown by %d KiB since the first rounds", grown>>10)
		require.Less(t, grown, int64(8<<20))
	})
}
