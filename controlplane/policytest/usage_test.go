package policytest_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

const usageOverProxies = `
version: 1
usage: {path: /.well-known/ratelimit}
rules:
  - {name: local, key: [{header: u}], limits: [50/1h]}
  - {name: layers, scope: cluster, key: [{header: u}], limits: [90/1m, {requests: 400, per: month, name: month}]}
  - {name: gold, scope: cluster, match: {methods: [POST]}, key: [{header: u}], limits: [7/10m],
     overrides: [{key: ["user-1"], limits: [30/10m]}, {key: ["user-2"], unlimited: true}]}
  - {name: log, scope: cluster, key: [{header: u}], algorithm: sliding_window_log, limits: [40/5m], lease: off}
  - {name: counter, scope: cluster, key: [{header: u}], algorithm: sliding_window_counter, limits: [60/10m]}
  - {name: bucket, scope: cluster, key: [{header: u}], algorithm: token_bucket,
     limits: [{requests: 30, per: 1m, burst: 80}]}
  - {name: said, scope: cluster, key: [{header: u}],
     limits: [{requests: {header: l, trusted: true, default: 20, max: 90}, per: 1h}]}
  - {name: charged, scope: cluster, key: [{header: u}], limits: [70/10m], settle: {to: {header: x-cost}}}
  - {name: slots, scope: cluster, key: [{header: u}], algorithm: concurrency, limits: [9]}
  - {name: trial, scope: cluster, mode: shadow, key: [{header: u}], limits: [5/1m]}
`

func askUsage(p *policytest.Proxies, user string, fault policytest.Fault) *policytest.Verdict {
	return p.Do(policytest.Request{
		Path: "/.well-known/ratelimit", Header: http.Header{"U": {user}, "L": {"33"}}, Fault: fault,
	})
}

// TestUsageOverProxies: at 200 random moments of three proxies that ask one quota service, a client is told the
// figures that counters get at the same instant, whichever proxy it asks.
func TestUsageOverProxies(t *testing.T) {
	o := options(t, usageOverProxies)
	o.Proxies = 3
	p := policytest.New(t, o)
	dice := rand.New(rand.NewPCG(8, 9))
	var used, held, answers int
	var running []*policytest.Running
	for range 200 {
		for range dice.IntN(12) {
			running = append(running, p.Start(policytest.Request{
				Method: []string{"GET", "POST"}[dice.IntN(2)],
				Header: http.Header{"U": {fmt.Sprint("user-", dice.IntN(4))}, "L": {"33"}},
			}))
			p.Advance(time.Duration(dice.Int64N(int64(2 * time.Second))))
		}
		for len(running) > 6 {
			p.Answer(running[0], policytest.Answer{Header: http.Header{"X-Cost": {fmt.Sprint(dice.IntN(5))}}})
			running = running[1:]
		}
		if dice.IntN(20) == 0 {
			p.Advance(time.Duration(dice.IntN(30)) * time.Minute)
		}
		user := fmt.Sprint("user-", dice.IntN(5))
		var usage result.Usage
		require.NoError(t, json.Unmarshal([]byte(askUsage(p, user, "").Body), &usage))
		names := []string{}
		for i := range usage.Rules {
			r := &usage.Rules[i]
			names = append(names, r.Name)
			if r.Name == "local" || r.Name == "said" || r.Name == "gold" && user == "user-2" {
				continue // each proxy has its own; get cannot say the limits of a request; nothing is counted
			}
			count := p.Count(policytest.Counter{Rule: r.Name, Key: []string{user}})
			require.Len(t, r.Windows, len(count.Windows), r.Name)
			for j, w := range count.Windows {
				g := &r.Windows[j]
				require.Equal(t, []any{w.Limit, w.Used, count.Held, w.Remaining, ceil(w.Reset)},
					[]any{g.Limit, g.Used, g.Held, g.Remaining, time.Duration(g.Reset) * time.Second}, "%s of %s", r.Name, user)
				used, held = used+int(g.Used), held+int(g.Held)
				answers++
			}
		}
		require.Equal(t, []string{"local", "layers", "gold", "log", "counter", "bucket", "said", "charged", "slots"}, names)
		for _, r := range usage.Rules {
			if r.Name == "said" {
				require.EqualValues(t, 33, r.Windows[0].Limit)
			}
		}
	}
	t.Logf("%d windows at 200 moments: %d used, %d held", answers, used, held)
	require.Positive(t, used*held)
}

func ceil(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// TestUsageOfASilentQuotaService: rules over all proxies are not known then, also those that have a share of this proxy
// left; the others are.
func TestUsageOfASilentQuotaService(t *testing.T) {
	p := policytest.New(t, options(t, usageOverProxies))
	p.Do(policytest.Request{Header: http.Header{"U": {"a"}}})
	for range 2 { // it waits in vain, and then waits no longer
		v := askUsage(p, "a", policytest.QuotaFault)
		require.Equal(t, 200, v.Status)
		require.Contains(t, v.Body, `{"name":"local","windows":[{"limit":50,"per":3600,"used":1,`)
		require.Contains(t, v.Body, `{"name":"layers","windows":null}`)
		require.Contains(t, v.Body, `{"name":"slots","windows":null}`)
	}
	p.Advance(5 * time.Second)
	require.NotContains(t, askUsage(p, "a", "").Body, "null")
}

// TestARuleOfAllProxiesDecidesLooks: it is asked first, and then the service is asked how the keys stand.
func TestARuleOfAllProxiesDecidesLooks(t *testing.T) {
	p := policytest.New(t, options(t, usageOverProxies+`
  - {name: asks, scope: cluster, match: {paths: [/.well-known/ratelimit]}, key: [{header: u}], limits: [2/1h]}
`))
	require.Contains(t, askUsage(p, "a", "").Body, `{"name":"asks","windows":[{"limit":2,"per":3600,"used":1,`)
	require.Contains(t, askUsage(p, "a", "").Body, `{"name":"asks","windows":[{"limit":2,"per":3600,"used":2,`)
	v := askUsage(p, "a", "")
	require.Equal(t, 429, v.Status)
	require.Equal(t, "asks", v.DeniedBy)
}

// TestABlockOfAllProxiesIsTold: a client that one proxy has denied is told by another one how long it is blocked.
func TestABlockOfAllProxiesIsTold(t *testing.T) {
	o := options(t, `
version: 1
usage: {path: /.well-known/ratelimit}
rules: [{name: r, scope: cluster, key: [{header: u}], limits: [2/1m], block: 1h}]
`)
	o.Proxies = 2
	p := policytest.New(t, o)
	for range 3 {
		p.Do(policytest.Request{Header: http.Header{"U": {"a"}}})
	}
	require.Contains(t, askUsage(p, "a", "").Body, `"name":"r","blocked":3600,`)
	p.Advance(30 * time.Minute)
	require.Contains(t, askUsage(p, "a", "").Body, `"name":"r","blocked":1800,`)
	require.Contains(t, askUsage(p, "b", "").Body, `"name":"r","blocked":0,"windows":[{"limit":2,`)
}
