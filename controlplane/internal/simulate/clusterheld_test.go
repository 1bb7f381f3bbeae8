package simulate_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// answeredLines are requests of three users, of which each has its answer within two seconds.
func answeredLines(seed uint64, n int) string {
	dice := rand.New(rand.NewPCG(seed, 2))
	var b strings.Builder
	at := int64(1_700_000_000_000)
	type running struct {
		id  int
		end int64
	}
	var all []running
	for id := range n {
		at += dice.Int64N(200)
		all = slices.DeleteFunc(all, func(r running) bool {
			if r.end <= at {
				fmt.Fprintf(&b, `{"at_ms":%d,"answer":"%d","status":%d,"end":true}`+"\n", at, r.id, []int{200, 401}[dice.IntN(2)])
			}
			return r.end <= at
		})
		all = append(all, running{id, at + 1 + dice.Int64N(2000)})
		fmt.Fprintf(&b, `{"at_ms":%d,"id":"%d","headers":{"u":"%d","x-cost":"%d"}}`+"\n", at, id, dice.IntN(3), 1+dice.IntN(3))
	}
	return b.String()
}

var decided = regexp.MustCompile(`"(allowed|answer|settled|reason|used|held|remaining|retry_after_ms|reset_ms)":(\[[^]]*\]|[^,}]*)`)

// TestHeldOverAllProxies: three proxies hold and are charged as one is.
func TestHeldOverAllProxies(t *testing.T) {
	for _, rule := range []string{
		`key: [{header: u}], algorithm: concurrency, limits: [2]`,
		`key: [{header: u}], limits: [9/5s], cost: {header: x-cost, default: 1, max: 5}, settle: {when: {status: [401]}}`,
		`key: [{header: u}], limits: [9/5s], algorithm: fixed_window_per_key, settle: {to: milliseconds, max: 30}`,
		`key: [{header: u}], limits: [9/5s, 40/1m], algorithm: sliding_window_log, settle: {when: {status: [401]}}`,
		`key: [{header: u}], limits: [9/5s], algorithm: sliding_window_counter, settle: {when: {status: [401]}}`,
		`key: [{header: u}], limits: [{requests: 9, per: 5s, burst: 6}], algorithm: token_bucket, settle: {to: milliseconds, max: 9}`,
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			require.Positive(t, asOneProxy(t, []string{"name: r, " + rule}, ", scope: cluster", answeredLines(1, *clusterLines), decided))
		})
	}
}

// TestALongRequestHoldsNothingAnyMore: what it holds ends hold after max_hold, and at most an
// eighth later, in one proxy as over all. It is charged then, and its answer changes nothing.
func TestALongRequestHoldsNothingAnyMore(t *testing.T) {
	const hold, maxHold, answered = 10, 20, 50
	var b strings.Builder
	line := func(second int, text string) {
		fmt.Fprintf(&b, `{"at_ms":%d,%s}`+"\n", 1_700_000_000_000+1000*int64(second), text)
	}
	line(0, `"id":"long"`)
	for second := 1; second < 60; second++ {
		if second == answered {
			line(second, `"answer":"long","status":401,"end":true`)
		}
		line(second, `"op":"get","rule":"r"`)
	}
	for _, c := range []struct {
		rule, first, then string
	}{
		{`algorithm: concurrency, limits: [9]`, `"remaining":8`, `"remaining":9`},
		{`limits: [9/1d], cost: 2, settle: {when: {status: [401]}}`, `"used":0,"remaining":7`, `"used":2,"remaining":7`},
		{`algorithm: token_bucket, limits: [9/366d], cost: 2, settle: {when: {status: [200]}}`, `"used":0,"remaining":7`, `"used":2,"remaining":7`},
	} {
		t.Run(c.rule, func(t *testing.T) {
			rule := fmt.Sprintf("name: r, hold: %ds, max_hold: %ds, %s", hold, maxHold, c.rule)
			for scope, proxies := range map[string]int{"": 1, ", scope: cluster": 3} {
				ended := 0
				for i, out := range simulateLines(t, policyOf([]string{rule}, scope), proxies, b.String())[1:] {
					second := i + 1
					if second > answered {
						second--
					}
					switch {
					case strings.Contains(out, `"answer"`):
					case ended > 0:
						require.Contains(t, out, c.then)
					case strings.Contains(out, c.then):
						ended = second
					default:
						require.Contains(t, out, c.first)
					}
				}
				require.GreaterOrEqual(t, ended, maxHold+hold, scope)
				require.LessOrEqual(t, ended, maxHold+hold+hold/8+1, scope)
			}
		})
	}
}
