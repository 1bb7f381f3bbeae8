package decision

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestBars(t *testing.T) {
	turns := func(totals ...float64) (list []turn) {
		for _, us := range totals {
			list = append(list, turn{EnvoyUs: us - 3, ServiceUs: 2, RedisUs: 1, P99Us: 10 * us, Asks: 0.02})
		}
		return list
	}
	f := clusterFigures{
		Rounds: 3,
		Shares: []sharedCase{
			{Name: caseHot, Sides: map[string][]turn{sideBare: turns(20, 30, 20), sideProxy: turns(30, 40, 30), sideLeased: turns(31, 42, 31.5)}},
			{Name: caseFresh, Sides: map[string][]turn{sideBare: turns(20), sideAsked: turns(60), sideLeased: turns(60)}},
		},
		Core: []coreCase{{Name: storeMemory, Runs: []coreRun{{Rate: 59_999}, {Rate: 60_000}, {Rate: 70_000}}}},
		Used: []usedLimit{{"10/1s", "even", 2, 0.9899}, {"1000/1s", "even", 0.5, 0.5}},
	}
	bars := f.bars()
	require.Contains(t, bars, "of a `scope: proxy` rule's | ≤ 1.15 | 1.15 | met |", "the median of differences: 11, 12, 11.5, of 10")
	require.Contains(t, bars, "requests that ask | ≤ 2.00 % | 2.00 % | met |")
	require.Contains(t, bars, "p99 above it | ≤ 0.100 ms | 0.015 ms | met |")
	require.Contains(t, bars, "at low load | ≤ 0.90 | 1.00 | **missed** |")
	require.Contains(t, bars, "saturated | ≤ 0.60 | – | not measured |")
	require.Contains(t, bars, "store in memory | ≥ 60000 asks/s | 60000 asks/s | met |")
	require.Contains(t, bars, "10/1s, even, asked for 2.00 times | ≥ 99.0 % | 99.0 % | **missed** |")
	require.NotContains(t, clusterFigures{}.bars(), "met |", "what was not measured is not met")
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

// One service answers what eight streams ask, and counts it.
func TestAskAll(t *testing.T) {
	b := &bench{sluice: filepath.Join(buildtest.Root(), "build", "out", "sluice")}
	require.FileExists(t, b.sluice, "make build")
	q, err := b.startQuota(t.Context(), storeMemory)
	require.NoError(t, err)
	defer q.Kill()
	n, err := askAll(t.Context(), q.address(), time.Now().Add(200*time.Millisecond))
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, coreStreams*coreBatch)
	asks, err := q.asks(t.Context())
	require.NoError(t, err)
	require.InDelta(t, float64(n), asks, 0)
}
