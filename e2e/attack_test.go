//go:build long

package e2e

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/e2e/attack"
)

var attackCapacity = flag.Int("attack-capacity", 200,
	"capacity of the limiters that are attacked on Envoy with up to 100 times as many keys")

const (
	attackLimit = 20
	// weighed is the smallest capacity whose table is larger than the noise in Envoy's
	// allocations.
	weighed = 4096
)

// The same attack runs on this filter and on Envoy's own local rate limit with
// dynamic descriptors. Our filter admits no client beyond its limit in the window,
// and its memory stays within what validate printed. Envoy's own limiter forgets keys
// when it is full, and admits cheaters again.
func TestCardinalityAttack(t *testing.T) {
	d := newest(t)
	p := siteOf(t, separate(d)) // it has a log
	for _, c := range []struct{ name, limits string }{
		{"aligned", "limits: [20/" + far + "]"},
		{"per-key", "algorithm: fixed_window_per_key, limits: [20/" + far + "]"},
		{"log", "algorithm: sliding_window_log, limits: [20/" + far + "]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, times := range []int{1, 10, 100} {
				rule := fmt.Sprintf("%s-%d", c.name, times)
				policy := fmt.Sprintf("version: 1\nrules: [{name: %s, key: [{header: x-user-id}], capacity: %d, %s}]\n", rule,
					*attackCapacity, c.limits)
				p.apply(t, policy)
				printed, _ := memoryOf(t, policy)
				o, grown := p.attack(t, times, *attackCapacity)
				refused := uint64(0)
				eventually(t, 10*time.Second, "the metrics to be flushed", func() bool {
					passed, _ := p.metric(t, "rate_limit_allowed_total", rule)
					refused, _ = p.metric(t, "rate_limit_denied_total", rule)
					return int(passed+refused) == o.Sent
				})
				floor, _ := p.metric(t, "rate_limit_floor_denied_total", rule)
				t.Logf("floor_denied %d of %d denials, %d of them of invented keys", floor, refused, o.FloodDenied)
				require.Zero(t, o.OverLimit)
				require.GreaterOrEqual(t, floor, uint64(o.FloodDenied))
				if times < 100 {
					require.Less(t, o.FalselyDenied(), 1.0)
				}
				if *attackCapacity >= weighed {
					t.Logf("validate printed %d bytes", printed)
					require.Less(t, float64(grown), 1.15*float64(printed))
				}
			}
		})
	}
	t.Run("native", func(t *testing.T) {
		for _, times := range []int{1, 10, 100} {
			o, _ := d.startNative(t, *attackCapacity).attack(t, times, *attackCapacity)
			require.Zero(t, o.HonestDenied)
			if times == 100 {
				require.Greater(t, o.CheaterMax, 2*attackLimit, "Envoy's own limiter has no floor, so it refunds on eviction")
			}
		}
	})
}

// attack attacks the proxy with times·capacity invented keys. From a capacity of
// weighed on, it also returns by how many bytes Envoy's allocations have grown.
func (p *proxy) attack(t *testing.T, times, capacity int) (o attack.Outcome, grown int64) {
	list := attack.NewList(attack.Plan{Flood: times * capacity, Limit: attackLimit, Honest: 100, Cheaters: 20, Bursts: 10})
	l := p.load(16)
	// Requests without a key, so that Envoy allocates its buffers.
	l.send(t, 2000, func(int) request { return request{path: direct} })
	before := int64(0)
	if capacity >= weighed {
		before = settled(t, p.allocated)
	}
	began := time.Now()
	got := l.send(t, list.Len(), func(i int) request { return request{direct, "x-user-id", list.Key(i)} })
	took := time.Since(began)
	require.Equal(t, len(got), count(got, allowed)+count(got, denied))
	o = list.Judge(func(i int) bool { return got[i] == allowed })
	if capacity >= weighed {
		grown = settled(t, p.allocated) - before
		t.Logf("grown by %d bytes", grown)
	}
	t.Logf("%d x capacity %d, %d requests in %.1f s: %.1f %% of honest requests denied, "+
		"a cheater admitted %d of %d times, %d clients over the limit",
		times, capacity, len(got), took.Seconds(), o.FalselyDenied(), o.CheaterMax, attackLimit, o.OverLimit)
	return o, grown
}

// native is Envoy's own limiter, where the filter would stand.
const native = `
"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
stat_prefix: native
max_dynamic_descriptors: %d
always_consume_default_token_bucket: false
token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 86400s}
filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}}
filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}
rate_limits: [{actions: [{request_headers: {header_name: x-user-id, descriptor_key: user}}]}]
descriptors:
- entries: [{key: user}]
  token_bucket: {max_tokens: %[2]d, tokens_per_fill: %[2]d, fill_interval: 86400s}
`

// startNative starts an Envoy with its own limiter, which does nothing on a route without an
// upstream.
func (d driver) startNative(t *testing.T, capacity int) *proxy {
	return d.start(t, proxyOptions{policy: "version: 1\n", edit: func(bootstrap []byte) []byte {
		return edited(t, bootstrap, func(static object) {
			filter := managerOf(listenersOf(static)[0])["http_filters"].([]any)[0].(object)
			filter["name"], filter["typed_config"] = "native", unmarshaled(t, fmt.Sprintf(native, capacity, attackLimit))
		})
	}})
}
