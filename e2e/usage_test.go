package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

func TestFieldUsage(t *testing.T) { everyProxy(t, rows("usage")) }

// askUsage asks for the usage of a client with these headers, on a connection that ends then, so that any worker
// may answer.
func (p *proxy) askUsage(t *testing.T, headers ...string) (usage result.Usage) {
	res, body := p.get(t, "/.well-known/ratelimit", append(headers, "connection", "close")...)
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	decoder := json.NewDecoder(bytes.NewReader([]byte(body)))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&usage), body)
	return usage
}

// requireTold requires that a client was told what an operator was told before and after it: the times go on in
// between.
func requireTold(t *testing.T, before, after *operation, told *result.RuleUsage) {
	t.Helper()
	seconds := func(ns int64) int64 { return (ns + 999_999_999) / 1_000_000_000 }
	require.Len(t, told.Windows, len(before.Windows), told.Name)
	for i := range told.Windows {
		first, last := &before.Windows[i], &after.Windows[i]
		w := &told.Windows[i]
		require.Equal(t, []any{*first.Limit, first.Used, *first.Remaining}, []any{w.Limit, w.Used, w.Remaining}, told.Name)
		require.True(t, seconds(last.ResetNs) <= w.Reset && w.Reset <= seconds(first.ResetNs),
			"%s: %d, and not from %d to %d", told.Name, w.Reset, last.ResetNs, first.ResetNs)
		held := uint32(0)
		if before.Held != nil {
			held = *before.Held
		}
		require.Equal(t, held, w.Held, told.Name)
	}
	if told.Blocked != nil {
		require.True(t, seconds(after.BlockedNs) <= *told.Blocked && *told.Blocked <= seconds(before.BlockedNs), told.Name)
	}
}

// TestUsageIsWhatOperatorsAreTold: at 200 random moments of an Envoy with four workers, each once the traffic stands
// still, a client is told what `counters get` says of its keys.
func TestUsageIsWhatOperatorsAreTold(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		upstream := startAnswering(t)
		p := d.start(t, proxyOptions{upstream: upstream.URL, policy: "version: 1\n" + managed + `
usage: {path: /.well-known/ratelimit}
rules:
  - name: layers
    match: {methods: [GET], paths: [/work]}
    key: [{header: u}]
    limits: [100/` + far + `, {requests: 90, per: 1d, algorithm: fixed_window_per_key}, 5000/month]
  - {name: log, key: [{header: u}], algorithm: sliding_window_log, limits: [70/1d], block: 1h}
  - {name: counter, key: [{header: u}], algorithm: sliding_window_counter, limits: [9000/300d]}
  - {name: bucket, key: [{header: u}], algorithm: token_bucket, limits: [{requests: 1, per: 300d, burst: 400}]}
  - {name: charged, key: [{header: u}], limits: [80/` + far + `], settle: {to: {header: x-cost}}}
  - {name: slots, match: {paths: [/slow]}, key: [{header: u}], algorithm: concurrency, limits: [3]}
`})
		over := make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		defer close(over)
		arrived := make(chan struct{})
		defer upstream.onArrival("slow", func() { close(arrived); <-over })()
		wg.Go(func() { _, _, _ = p.try("/slow", "u", "user-0", "x-id", "slow") })
		<-arrived

		dice := rand.New(rand.NewPCG(3, 4))
		var used, held, blocked int
		for moment := range 200 {
			p.load(8).send(t, dice.IntN(24), func(int) request {
				return request{"/work", "u", fmt.Sprint("user-", moment%7)}
			})
			user := fmt.Sprint("user-", dice.IntN(7))
			key := "&key=" + url.QueryEscape(user)
			var before []operation
			names := []string{"layers", "log", "counter", "bucket", "charged", "slots"}
			for _, rule := range names {
				before = append(before, p.operate(t, "get", "rule="+rule+key))
			}
			usage := p.askUsage(t, "u", user)
			require.Len(t, usage.Rules, len(names))
			for i, rule := range names {
				after := p.operate(t, "get", "rule="+rule+key)
				told := &usage.Rules[i]
				require.Equal(t, rule, told.Name)
				requireTold(t, &before[i], &after, told)
				used, held = used+int(told.Windows[0].Used), held+int(told.Windows[0].Held)
				if told.Blocked != nil && *told.Blocked > 0 {
					blocked++
				}
			}
		}
		t.Logf("%d used, %d held, %d blocked", used, held, blocked)
		require.Positive(t, used*held*blocked)
	})
}

// TestUsageOverEnvoys: at 200 random moments of three Envoys that ask a quota service on Redis, a client is told by any
// of them what the service tells an operator, once the traffic stands still.
func TestUsageOverEnvoys(t *testing.T) {
	t.Parallel()
	store := "redis://" + servertest.StartRedis(t, servertest.Redis(t)).Addr()
	service, c := startQuota(t, store), startControlPlane(t, "--quota-store", store)
	proxies := make([]*proxy, 3)
	for i := range proxies {
		proxies[i] = c.proxy(t, newest(t), proxyOptions{
			node: fmt.Sprint("edge-", i), quota: service.address, manage: freeAddress(t),
		})
	}
	c.apply(t, strings.Replace(clusterPolicy, "rules:\n", `
usage: {path: /.well-known/ratelimit}
rules:
  - {name: leased, scope: cluster, key: [{header: u}], limits: [3000/`+far+`, 900/month]}
  - {name: asked, scope: cluster, lease: off, key: [{header: u}], limits: [60/`+far+`], block: 1h}
  - {name: log, scope: cluster, lease: off, key: [{header: u}], algorithm: sliding_window_log, limits: [90/300d]}
  - {name: held, scope: cluster, key: [{header: u}], limits: [150/`+far+`], settle: {to: cost}}
`, 1))
	get := func(rule, user string) (got operation) {
		response, err := http.PostForm(c.url()+"/v1/counters/get", url.Values{"rule": {rule}, "key": {user}})
		require.NoError(t, err)
		defer response.Body.Close()
		var answer struct{ Quota *result.Result }
		require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
		require.NotNil(t, answer.Quota)
		for i := range answer.Quota.Windows {
			answer.Quota.Windows[i].ResetNs = answer.Quota.Windows[i].ResetMs * 1e6
		}
		return operation{Held: answer.Quota.Held, Windows: answer.Quota.Windows, BlockedNs: answer.Quota.BlockedMs * 1e6}
	}
	dice := rand.New(rand.NewPCG(30, 1))
	var same, blocked int
	for moment := range 200 {
		sendAll(t, proxies, dice.IntN(4), func(int, int) request {
			return request{"/", "u", fmt.Sprint("user-", moment%5)}
		})
		user := fmt.Sprint("user-", dice.IntN(5))
		before := map[string]operation{}
		names := []string{"leased", "asked", "log", "held"}
		for _, rule := range names {
			before[rule] = get(rule, user)
		}
		usage := proxies[dice.IntN(3)].askUsage(t, "u", user)
		require.Len(t, usage.Rules, len(names))
		for i, rule := range names {
			first, last := before[rule], get(rule, user)
			if first.Windows[0].Used != last.Windows[0].Used { // meanwhile a proxy gave units back
				continue
			}
			same++
			require.Equal(t, rule, usage.Rules[i].Name)
			requireTold(t, &first, &last, &usage.Rules[i])
			if b := usage.Rules[i].Blocked; b != nil && *b > 0 {
				blocked++
			}
		}
	}
	t.Logf("%d of 800 figures were the same before and after, %d times of a blocked key", same, blocked)
	require.Greater(t, same, 600)
	require.Positive(t, blocked)
}
