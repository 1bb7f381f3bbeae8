package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// model counts by a list of numbers for each client and period what Suggest finds.
type model struct {
	lines   []logged
	periods []time.Duration
}

// numbers returns how much each client uses in each period that it is in, and in its
// fullest, both sorted.
func (m *model) numbers(period time.Duration) (each, fullest []int) {
	uses, most := map[[2]string]int{}, map[string]int{}
	for _, l := range m.lines {
		if l.user != "" {
			at := [2]string{l.user, fmt.Sprint(l.atMs / period.Milliseconds())}
			uses[at]++
			most[l.user] = max(most[l.user], uses[at])
		}
	}
	for _, n := range uses {
		each = append(each, n)
	}
	for _, n := range most {
		fullest = append(fullest, n)
	}
	slices.Sort(each)
	slices.Sort(fullest)
	return each, fullest
}

// denied decides by limits of one for each period, in the order of time.
func (m *model) denied(limits []uint32) (requests int64, clients int64) {
	used, denied := map[string]uint32{}, map[string]bool{}
	for _, l := range m.lines {
		if l.user == "" {
			continue
		}
		full, windows := false, []string{}
		for i, p := range m.periods {
			windows = append(windows, fmt.Sprint(l.user, i, l.atMs/p.Milliseconds()))
			full = full || used[windows[i]] == limits[i]
		}
		if full {
			requests++
			denied[l.user] = true
			continue
		}
		for _, w := range windows {
			used[w]++
		}
	}
	return requests, int64(len(denied))
}

// perMille is the least number that so many thousandths of the numbers do not exceed.
func perMille(sorted []int, n int) uint32 { return uint32(sorted[(len(sorted)*n+999)/1000-1]) }

func requireDistribution(t *testing.T, sorted []int, d Distribution) {
	t.Helper()
	require.EqualValues(t, len(sorted), d.Periods)
	require.Equal(t, []uint32{perMille(sorted, 500), perMille(sorted, 900), perMille(sorted, 990), perMille(sorted, 999), perMille(sorted, 1000)},
		[]uint32{d.P50, d.P90, d.P99, d.P999, d.Max})
}

func TestSuggestIsWhatAModelFinds(t *testing.T) {
	for seed, most := range []float64{0, 0.001, 0.05, 0.4} {
		m := &model{lines: traffic(uint64(seed)+10, 3000), periods: []time.Duration{time.Second, time.Minute}}
		o := SuggestOptions{Options: options(t, "", m.lines), Key: []string{"header:x-user-id"}, Periods: []string{"1s", "1m"}, Most: most}
		s, err := Suggest(t.Context(), o)
		require.NoError(t, err)
		var limits []uint32
		for i, l := range s.Limits {
			each, fullest := m.numbers(m.periods[i])
			requireDistribution(t, each, l.Each)
			requireDistribution(t, fullest, l.Most)
			limits = append(limits, l.Units)
		}
		requests, clients := m.denied(limits)
		rule := &s.Replay.Rules[0]
		require.Equal(t, requests, rule.Shadow)
		require.Equal(t, clients, rule.DeniedClients)
		require.Equal(t, requests, s.Replay.Shadow)
		require.Equal(t, "shadow", rule.Mode)
		require.LessOrEqual(t, float64(requests), most*float64(rule.Requests), "no more than was asked for")
		require.LessOrEqual(t, float64(clients), most*float64(rule.Clients))
		require.Equal(t, s.Keyless, int64(len(m.lines))-rule.Requests)
		require.Equal(t, s.Clients, rule.Clients)
	}
}

// A share of very many uses is not one use off, as a fraction of floating point is.
func TestQuantileOfMany(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		n := 1 + dice.Int64N(1_000_000)
		for share, thousandths := range map[float64]int64{0.5: 500, 0.9: 900, 0.99: 990, 0.999: 999} {
			place := (n*thousandths + 999) / 1000 // the least one that is enough
			u := Uses{1: place, 2: n - place}
			require.EqualValues(t, 1, u.Quantile(share), "%v of %d", share, n)
			if place > 1 {
				u = Uses{1: place - 1, 2: n - place + 1}
				require.EqualValues(t, 2, u.Quantile(share), "%v of %d", share, n)
			}
		}
	}
}
