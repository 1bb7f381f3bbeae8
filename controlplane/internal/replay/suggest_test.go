package replay

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

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
		o := SuggestOptions{Options: options(t, "", lines), Key: []string{"header:x-user-id"}, Periods: []string{"1m"}, Most: most}
		s, err := Suggest(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, &Apart{Clients: 1, Least: 200, Others: 12}, s.Limits[0].Apart)
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
	require.Equal(t, &Apart{Clients: 2, Least: 100, Others: 4}, s.Limits[0].Apart)
	require.Len(t, s.Apart, 2)
	for i, c := range s.Apart {
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
					fullest, most, tail := Uses{}, uint32(0), Uses{}
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
					var want *Apart
					if abusers > 0 {
						want = &Apart{int64(abusers), far, most}
					}
					require.Equal(t, want, apart(fullest))
				})
			}
		}
	}
}

func TestApart(t *testing.T) {
	for name, tc := range map[string]struct {
		fullest Uses
		want    *Apart
	}{
		"nobody":                      {Uses{}, nil},
		"all alike":                   {Uses{7: 1000}, nil},
		"three times as much":         {Uses{10: 99, 30: 1}, nil},
		"more than three times":       {Uses{10: 99, 31: 1}, &Apart{1, 31, 10}},
		"two kinds of them":           {Uses{10: 198, 40: 1, 500: 1}, &Apart{2, 40, 10}},
		"one of twenty, four times":   {Uses{10: 95, 40: 5}, &Apart{5, 40, 10}},
		"more of them, four times":    {Uses{10: 94, 40: 6}, nil},
		"more of them, six times":     {Uses{10: 94, 60: 6}, &Apart{6, 60, 10}},
		"a third":                     {Uses{10: 40, 200: 20}, &Apart{20, 200, 10}},
		"more than a third":           {Uses{10: 39, 200: 21}, nil},
		"the others have a tail":      {Uses{2: 90, 8: 9, 30: 1}, nil},
		"far beyond the others' tail": {Uses{2: 90, 8: 9, 33: 1}, &Apart{1, 33, 8}},
		"one of ten":                  {Uses{10: 9, 4294967295: 1}, &Apart{1, 4294967295, 10}},
		"one of too few":              {Uses{10: 8, 4294967295: 1}, nil},
		"one of three":                {Uses{10: 2, 1000: 1}, nil},
		"one of five":                 {Uses{1: 2, 10: 2, 1000: 1}, nil},
	} {
		require.Equal(t, tc.want, apart(tc.fullest), name)
	}
}
