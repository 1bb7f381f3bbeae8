package replay

import (
	"fmt"
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

func TestApart(t *testing.T) {
	for name, tc := range map[string]struct {
		fullest Uses
		want    *Apart
	}{
		"nobody":                {Uses{}, nil},
		"all alike":             {Uses{7: 1000}, nil},
		"three times as much":   {Uses{10: 99, 30: 1}, nil},
		"more than three times": {Uses{10: 99, 31: 1}, &Apart{1, 31, 10}},
		"two kinds of them":     {Uses{10: 198, 40: 1, 500: 1}, &Apart{2, 40, 10}},
		"more than a hundredth": {Uses{10: 197, 40: 3}, nil},
		"one of a few":          {Uses{10: 9, 4294967295: 1}, &Apart{1, 4294967295, 10}},
		"one of too few":        {Uses{10: 8, 4294967295: 1}, nil},
	} {
		require.Equal(t, tc.want, apart(tc.fullest), name)
	}
}
