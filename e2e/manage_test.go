package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// The control plane sends management requests over TLS if it trusts the proxy's
// certificate. Only the management listener answers them, also if the policy names no
// port.
func TestManagementOverTLS(t *testing.T) {
	t.Parallel()
	d := newest(t)
	cert, key := buildtest.Certificate(t)
	control := startControlPlane(t, "--manage-ca", cert)
	p := control.proxy(t, d, proxyOptions{node: "edge-1", manage: freeAddress(t), flags: []string{"--manage-cert", cert, "--manage-key", key}})
	_, errs, exit := sluice(t, control.applying(t, perUser("3/"+far)+managed)...)
	require.Zero(t, exit, errs)
	require.Contains(t, errs, "manage: without port")

	r := control.counters(t, "inc", "--rule", "per-user", "--key", "alice", "--n", "2")
	require.Zero(t, r.Failed, "%v", r)
	require.EqualValues(t, 2, *r.Sum)
	require.Equal(t, 404, p.status(t, "/.sluice/counters/get?rule=per-user&key=alice", ":method", "POST", "authorization", bearer))
	text := sluiceOK(t, "explain", "--server", control.url(), "--header", "x-user-id: alice", "--output", "json")
	require.True(t, json.Valid([]byte(text)))
	require.Contains(t, text, `"used": 2`)

	// Without the CA the request fails.
	control.kill(t)
	control.flags = nil
	control.start(t)
	control.awaitConnected(t, "edge-1")
	r = control.counters(t, "get", "--rule", "per-user", "--key", "alice")
	require.Equal(t, 1, r.Failed)
	require.Contains(t, r.Proxies[0].Error, "certificate")
}

// A worker of a real Envoy looks at ten wrong tokens of an address in a second. While
// 250 addresses guess, each other one is served.
func TestWrongTokens(t *testing.T) {
	p := newest(t).listen(t, proxyOptions{policy: perUser("3/"+far) + managed, workers: 1})
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP/", version), func(t *testing.T) {
			dialer := func(address string) *http.Transport {
				protocols := new(http.Protocols)
				protocols.SetHTTP1(version == 1)
				protocols.SetUnencryptedHTTP2(version == 2)
				from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
				transport := &http.Transport{DialContext: from.DialContext, Protocols: protocols}
				t.Cleanup(transport.CloseIdleConnections)
				return transport
			}
			ask := func(c *http.Transport, authorization string) *http.Response {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+"/.sluice/counters/stats", http.NoBody)
				require.NoError(t, err)
				r.Header.Set("Authorization", authorization)
				res, err := c.RoundTrip(r)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				require.Equal(t, version, res.ProtoMajor)
				return res
			}
			attackers := make([]*http.Transport, 250)
			for i := range attackers {
				attackers[i] = dialer(fmt.Sprint("127.0.", version, ".", i+1))
			}
			began, statuses := time.Now(), map[int]int{}
			for i := range 20 * len(attackers) {
				res := ask(attackers[i%len(attackers)], fmt.Sprint("Bearer wrong-", i))
				statuses[res.StatusCode]++
				if res.StatusCode == http.StatusTooManyRequests {
					require.Equal(t, "1", res.Header.Get("Retry-After"))
				}
				if i%50 == 0 { // among them
					operator := dialer(fmt.Sprint("127.1.", version, ".", i/50+1))
					require.Equal(t, http.StatusOK, ask(operator, bearer).StatusCode)
				}
			}
			for i := range 100 { // one address alone
				statuses[ask(attackers[0], fmt.Sprint("Bearer wrong-", i)).StatusCode]++
			}
			seconds := int(time.Since(began)/time.Second) + 2
			require.Positive(t, statuses[429], "%v", statuses)
			require.LessOrEqual(t, statuses[401], 10*seconds*len(attackers), "%v", statuses)
			require.Equal(t, 20*len(attackers)+100, statuses[401]+statuses[429])
			require.Equal(t, 401, ask(dialer("127.2.0.1"), "Bearer "+strings.Repeat("k", 1025)).StatusCode)
		})
	}
}

func TestHiddenManagementPaths(t *testing.T) { each(t, rows("hidden")) }
