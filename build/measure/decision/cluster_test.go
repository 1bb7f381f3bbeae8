package decision

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What a side adds is the median of differences within rounds.
func TestBars(t *testing.T) {
	turns := func(totals ...float64) (list []turn) {
		for _, us := range totals {
			list = append(list, turn{envoyUs: us - 3, serviceUs: 2, redisUs: 1, latency: latency{p99: 10 * us}, asks: 0.02})
		}
		return list
	}
	got := bars(map[string]sharedCase{
		caseHot:   {sideBare: turns(20, 30, 20), sideProxy: turns(30, 40, 30), sideLeased: turns(31, 42, 31.5)},
		caseFresh: {sideBare: turns(20), sideAsked: turns(60), sideLeased: turns(60)},
	}, []usedLimit{{"10/1s", "even", 2, 0.9899}, {"1000/1s", "even", 0.5, 0.5}})
	require.Contains(t, got, "of a `scope: proxy` rule's | ≤ 1.15 | 1.15 | met |", "11, 12, 11.5, of 10")
	require.Contains(t, got, "requests that ask | ≤ 2.00 % | 2.00 % | met |")
	require.Contains(t, got, "p99 above it | ≤ 0.100 ms | 0.015 ms | met |")
	require.Contains(t, got, "at low load | ≤ 0.75 | 1.00 | **missed** |")
	require.Contains(t, got, "saturated | ≤ 0.60 | – | not measured |")
	require.Contains(t, got, "10/1s, even, asked for 2.00 times | ≥ 99.0 % | 99.0 % | **missed** |")
	require.NotContains(t, bars(nil, nil), "met |", "what was not measured is not met")
}

func TestDraws(t *testing.T) {
	fresh, seen := freshKeys(), map[string]bool{}
	first, second := fresh(0), fresh(1)
	for range 100 {
		seen[string(first())], seen[string(second())] = true, true
	}
	require.Len(t, seen, 200)

	draw, again, times := zipfKeys(3), zipfKeys(3), map[string]int{}
	for range 10_000 {
		key := string(draw())
		require.Equal(t, key, string(again()), "all sides are asked for the same keys")
		times[key]++
	}
	require.Greater(t, times["user-000000"], 1000)
	require.Greater(t, len(times), 1000)
}

func TestSharedPolicies(t *testing.T) {
	for _, s := range shares() {
		for _, l := range s.listeners() {
			if l.policy == "" {
				continue
			}
			doc, err := policy.ParseJSON([]byte(l.policy))
			require.NoError(t, err, s.name)
			_, problems := policy.Read(doc)
			require.Empty(t, problems, s.name)
		}
	}
}
