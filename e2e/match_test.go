package e2e

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// raw sends a request with exactly this target and these header lines, on a connection of its own.
func (p *proxy) raw(t *testing.T, method, target string, lines ...string) *http.Response {
	text := method + " " + target + " HTTP/1.1\r\nconnection: close\r\n"
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "host:") {
		text += "host: a\r\n"
	}
	c, err := net.Dial("tcp", p.address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, _ = c.Write([]byte(text + strings.Join(append(lines, "", ""), "\r\n"))) // the proxy may close the connection first
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err, target)
	res.Body.Close()
	return res
}

func TestMatchPaths(t *testing.T) { everyProxy(t, rows("paths")) }

func TestForwardedForIsNotBelieved(t *testing.T) { everyProxy(t, rows("forwarded")) }

func TestWhoTheClientIs(t *testing.T) { everyEnvoy(t, rows("clients")) }

func TestHiddenManagementPaths(t *testing.T) { each(t, rows("hidden")) }

// Whoever guesses tokens is refused for a while, and nobody else.
func TestGuessedTokens(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		p := d.listen(t, proxyOptions{policy: perUser("3/"+far) + managed})
		ask := func(headers ...string) (status int, retryAfter string) {
			res, _ := p.get(t, "/.sluice/counters/stats", append(headers, ":method", http.MethodPost)...)
			return res.StatusCode, res.Header.Get("Retry-After")
		}
		eventually(t, 10*time.Second, "guesses to be refused", func() bool {
			status, retryAfter := ask("authorization", "Bearer wrong")
			require.Equal(t, status == denied, retryAfter == "1")
			return status == denied
		})
		for range 16 { // new connections, to any worker
			status, _ := ask(":from", "127.0.7.1", "authorization", bearer)
			require.Equal(t, allowed, status)
		}
	})
}

// TestHostileRequests: what Envoy lets through of them harms nobody. The filter's test of them has more.
func TestHostileRequests(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, d driver) {
		rows("hostile")(t, d)
		siteOf(t, d).noTraps(t)
	})
}
