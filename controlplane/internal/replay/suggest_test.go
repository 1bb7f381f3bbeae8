package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// byUser are options to suggest limits for users.
func byUser(o Options, periods ...string) SuggestOptions {
	return SuggestOptions{Options: o, Key: []string{"header:x-user-id"}, Periods: periods}
}

// One client's bursts do not set everybody's limit, whatever share may be denied.
func TestSuggestSetsAScraperApart(t *testing.T) {
	var lines []logged
	for minute := range int64(5) {
		at := noonMs + minute*60_000
		for i := range 40 {
			lines = append(lines, slices.Repeat([]logged{{at, fmt.Sprint("u", i), "/", "192.0.2.1", 200}}, 12-i%8)...)
		}
		lines = append(lines, slices.Repeat([]logged{{at + 20, "scraper", "/", "192.0.2.2", 200}}, 200)...)
	}
	for _, most := range []float64{0, 0.001} {
		o := byUser(options(t, "", lines), "1m")
		o.Most = most
		s, err := Suggest(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, &Outliers{Clients: 1, Least: 200, Others: 12}, s.Limits[0].Outliers)
		require.EqualValues(t, 200, s.Limits[0].Most.Max, "shown all the same")
		require.EqualValues(t, 12, s.Limits[0].Units)
		require.EqualValues(t, 5*(200-12), s.Replay.Shadow)
		require.EqualValues(t, 1, s.Replay.Rules[0].DeniedClients)
	}
}

// Two abusers among 61 clients do not set the others' limit, and the policy's comments name them.
func TestSuggestNamesWhoIsApart(t *testing.T) {
	var lines []logged
	at := int64(noonMs)
	for i := range 59 {
		lines = append(lines, slices.Repeat([]logged{{at, "", "/", fmt.Sprint("192.0.2.", i), 200}}, 1+i%4)...)
	}
	for _, abuser := range []string{"198.51.100.1", "198.51.100.2"} {
		lines = append(lines, slices.Repeat([]logged{{at + 10, "", "/", abuser, 200}}, 100)...)
	}
	o := SuggestOptions{Options: options(t, "", lines), Key: []string{"client_ip"}, Periods: []string{"1m"}, Most: 0.001}
	s, err := Suggest(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 4, s.Limits[0].Units)
	require.Equal(t, &Outliers{Clients: 2, Least: 100, Others: 4}, s.Limits[0].Outliers)
	require.Len(t, s.Outliers, 2)
	for i, c := range s.Outliers {
		require.Equal(t, fmt.Sprint("198.51.100.", i+1), KeyText(c.Key))
		require.Equal(t, []int64{100, 96}, []int64{c.Requests, c.Denied})
	}
	require.EqualValues(t, 2*96, s.Replay.Shadow)
}

// However many abusers there are, up to a third of the clients, the others set the limit.
func TestApartByDistance(t *testing.T) {
	honest := map[string]func(i, of int) uint32{
		"alike":         func(i, _ int) uint32 { return uint32(1 + i%4) },
		"a bell":        func(i, _ int) uint32 { return uint32(8 + i%5 + i%3) },
		"a long tail":   func(i, of int) uint32 { return uint32(math.Pow(float64(of)/float64(i+1), 0.7)) },
		"a longer tail": func(i, of int) uint32 { return uint32(2 * of / (i + 1)) }, // the first has as much as the next two
	}
	for name, use := range honest {
		for _, all := range []int{60, 1000} {
			for _, abusers := range []int{0, 1, 2, 5, 20} {
				t.Run(fmt.Sprint(name, " ", abusers, " of ", all), func(t *testing.T) {
					fullest, tail := Uses{}, Uses{}
					most := uint32(0)
					for i := range all - abusers {
						n := use(i, all-abusers)
						fullest[n]++
						tail[n]++
						most = max(most, n)
					}
					far := max(6*most, 2*most*most/tail.Quantile(0.9))
					for i := range abusers {
						fullest[far+uint32(i%3)]++
					}
					var want *Outliers
					if abusers > 0 {
						want = &Outliers{int64(abusers), far, most}
					}
					require.Equal(t, want, findOutliers(fullest))
				})
			}
		}
	}
}

func TestWhichClientsAreApart(t *testing.T) {
	for name, tc := range map[string]struct {
		fullest Uses
		want    *Outliers
	}{
		"nobody":                      {Uses{}, nil},
		"all alike":                   {Uses{7: 1000}, nil},
		"three times as much":         {Uses{10: 99, 30: 1}, nil},
		"more than three times":       {Uses{10: 99, 31: 1}, &Outliers{1, 31, 10}},
		"two kinds of them":           {Uses{10: 198, 40: 1, 500: 1}, &Outliers{2, 40, 10}},
		"one of twenty, four times":   {Uses{10: 95, 40: 5}, &Outliers{5, 40, 10}},
		"more of them, four times":    {Uses{10: 94, 40: 6}, nil},
		"more of them, six times":     {Uses{10: 94, 60: 6}, &Outliers{6, 60, 10}},
		"a third":                     {Uses{10: 40, 200: 20}, &Outliers{20, 200, 10}},
		"more than a third":           {Uses{10: 39, 200: 21}, nil},
		"the others have a tail":      {Uses{2: 90, 8: 9, 30: 1}, nil},
		"far beyond the others' tail": {Uses{2: 90, 8: 9, 33: 1}, &Outliers{1, 33, 8}},
		"one of ten":                  {Uses{10: 9, 4294967295: 1}, &Outliers{1, 4294967295, 10}},
		"one of too few":              {Uses{10: 8, 4294967295: 1}, nil},
		"one of three":                {Uses{10: 2, 1000: 1}, nil},
		"one of five":                 {Uses{1: 2, 10: 2, 1000: 1}, nil},
	} {
		require.Equal(t, tc.want, findOutliers(tc.fullest), name)
	}
}

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
	var want []uint32
	for _, share := range []int{500, 900, 990, 999, 1000} {
		want = append(want, perMille(sorted, share))
	}
	require.Equal(t, want, []uint32{d.P50, d.P90, d.P99, d.P999, d.Max})
}

func TestSuggestIsWhatAModelFinds(t *testing.T) {
	for seed, most := range []float64{0, 0.001, 0.05, 0.4} {
		m := &model{lines: traffic(uint64(seed)+10, 3000), periods: []time.Duration{time.Second, time.Minute}}
		o := byUser(options(t, "", m.lines), "1s", "1m")
		o.Most = most
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

func TestSuggestRejectsWhatItCannotCount(t *testing.T) {
	o := SuggestOptions{Options: options(t, "", traffic(3, 10)), Key: []string{"header"}, Periods: []string{"1s"}}
	_, err := Suggest(t.Context(), o)
	require.ErrorContains(t, err, "--key header is not a part of a key")
	o.Key, o.Periods = []string{"client_ip"}, nil
	_, err = Suggest(t.Context(), o)
	require.EqualError(t, err, "--per names no period")
	o.Log.Names = []string{"-"}
	_, err = Suggest(t.Context(), o)
	require.ErrorContains(t, err, "cannot be read twice")
	o = byUser(options(t, "", []logged{{noonMs, "", "/", "192.0.2.7", 200}}), "1s")
	_, err = Suggest(t.Context(), o)
	require.ErrorIs(t, err, ErrKeyless)
	require.ErrorContains(t, err, "no line has a value of header:x-user-id")
}

func TestTheLeastLimitDeniesNoMore(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		each, fullest := Uses{}, Uses{}
		for range 1 + dice.IntN(20) {
			units := uint32(1 + dice.IntN(30))
			each[units]++
			if dice.IntN(2) == 0 {
				fullest[units]++
			}
		}
		fullest[each.Quantile(1)]++
		requests, clients := dice.Int64N(40), dice.Int64N(6)
		allows := func(limit uint32) bool {
			over, many := int64(0), int64(0)
			for units, times := range each {
				over += max(0, int64(units)-int64(limit)) * times
			}
			for units, times := range fullest {
				if units > limit {
					many += times
				}
			}
			return over <= requests && many <= clients
		}
		got := least(each, fullest, requests, clients)
		require.True(t, allows(got))
		require.True(t, got == 1 || !allows(got-1))
	}
	for n, want := range map[uint32]uint32{1: 1, 99: 99, 100: 100, 101: 110, 12345: 13000, 4294967295: 4294967295} {
		require.Equal(t, want, round(n))
	}
}
