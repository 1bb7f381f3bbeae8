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
		site := siteOf(t, d)
		before := len(site.log()) // of tests that have its filter refuse policies
		rows("hostile")(t, d)
		noTrapsIn(t, site.log()[before:])
	})
}

func TestSpellings(t *testing.T) { each(t, rows("spellings")) }

// A client cannot get another counter, or a lower cost, by another spelling of a value,
// over HTTP/1 and HTTP/2: blanks around a header's value are no part of it, and a cost
// that an upstream may read otherwise is max.
func TestSpellingsOfValues(t *testing.T) {
	const policy = `
version: 1
rules:
  - {name: key, match: {paths: [/key]}, key: [{header: x-api-key}], missing_key: deny, limits: [2/` + far + `]}
  - {name: property, match: {paths: [/property]}, key: [{property: [request, headers, x-api-key]}],
     missing_key: deny, limits: [2/` + far + `]}
  - {name: override, match: {paths: [/override]}, key: [{header: x-api-key}], limits: [100/` + far +
		`], overrides: [{key: [slow], limits: [2/` + far + `]}]}
  - {name: match, match: {paths: [/match], headers: {x-api-key: "*-2"}}, key: [{header: n}], limits: [2/` + far + `]}
  - {name: pages, match: {paths: [/pages]}, key: [{header: n}], cost: {query: page_size, default: 20, max: 500},
     limits: [1000/` + far + `]}
  - {name: weight, match: {paths: [/weight]}, key: [{header: n}],
     cost: [{cost: {header: x-cost, default: 20, max: 500}}], limits: [1000/` + far + `]}
`
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, policy)
		versions := d.versions()
		for _, version := range versions {
			// admitted sends 40 requests with a header, spelled in as many ways, and counts
			// those that get through.
			admitted := func(target, name, value string, spaced bool) (n int) {
				for i := range 40 {
					sent := value
					if spaced {
						sent = strings.Repeat(" \t", i/6) + "  "[i%3:] + value + "\t\t"[i%2:] + "  "[:i%3]
					}
					var status int
					if version == "HTTP/1" { // which Go's client would send trimmed
						status = s.raw(t, http.MethodGet, target, "host: a", "n: "+version+target+value, name+": "+sent).StatusCode
					} else {
						status = s.status(t, target, ":version", version, "n", version+target+value, name, sent)
					}
					if status == allowed {
						n++
					}
				}
				return n
			}
			for _, target := range []string{"/key", "/property", "/match"} {
				require.Equal(t, 2, admitted(target, "x-api-key", version+"-2", true), "%s %s", version, target)
			}
			if version == versions[len(versions)-1] {
				require.Equal(t, 2, admitted("/override", "x-api-key", "slow", true), version)
			}
			for query, want := range map[string]int{"page_size=25": 40, "page_size=500": 2, "page%5Fsize=500": 2,
				"page_size=20&page_size=500": 2, "page_size=5e2": 2} {
				require.Equal(t, want, admitted("/pages?"+query, "x", "", false), "%s %s", version, query)
			}
			for cost, want := range map[string]int{"25": 40, "500": 2, "20, 500": 2} {
				require.Equal(t, want, admitted("/weight", "x-cost", cost, true), "%s %s", version, cost)
			}
		}
		eventually(t, 10*time.Second, "the metric", func() bool {
			unreadable, _ := s.metric(t, "rate_limit_cost_unreadable_total", "pages")
			return unreadable == uint64(len(versions)*40*2)
		})
	})
}

// Envoy refuses a header with an underscore, because an upstream may treat it as the
// same header with a hyphen.
func TestUnderscores(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, d driver) {
		s := serve(t, d, "version: 1\nrules: []\n")
		require.Equal(t, 400, s.raw(t, http.MethodGet, "/", "host: a", "x_tenant: acme").StatusCode)
		require.Equal(t, 200, s.raw(t, http.MethodGet, "/", "host: a", "x-tenant: acme").StatusCode)
		if res, _, err := s.try("/", ":version", "HTTP/2", "x_tenant", "acme"); err == nil {
			require.Equal(t, 400, res.StatusCode)
		}
		require.NotContains(t, s.log(), "allowed active downstream connections", "the limit is set")
	})
}
