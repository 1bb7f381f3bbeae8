package chart

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// every are n times, so far apart.
func every(d time.Duration, n int) (times []time.Time) {
	for i := range n {
		times = append(times, noon.Add(time.Duration(i)*d))
	}
	return times
}

func draw(t *testing.T, c *Chart) string {
	t.Helper()
	html, err := c.HTML()
	require.NoError(t, err)
	return string(html)
}

func TestAChartHasValuesTicksAndLimits(t *testing.T) {
	c := &Chart{
		Per: "per 1m", Times: every(time.Minute, 3),
		Allowed: []float64{3, 1, 2}, Denied: []float64{0, 2, 0}, Shadow: []float64{0, 0, 0},
		Limits: []Limit{{"2 per 1m", 2}, {"<b> per 1s", 60}},
	}
	page := draw(t, c)
	for _, want := range []string{
		"requests per 1m, time in UTC",
		`<polyline class="allowed" points="0,0 500,667 1000,333"/>`,
		`<polyline class="denied" points="0,1000 500,333 1000,1000"/></svg>`,
		`y1="140" y2="140"/><text x="-6" y="140" dy="4" class="value">0</text>`,
		`y1="0" y2="0"/><text x="-6" y="0" dy="4" class="value">3</text>`,
		`<line class="limit" x1="0" x2="100%" y1="46.67" y2="46.67"/>`,
		`<text x="100%" y="46.67" dy="-4" class="limit">2 per 1m</text>`,
		`<text x="50%" y="160" class="time ">12:01:00</text>`, `<text x="100%" y="160" class="time last">12:02:00</text>`,
		`<rect x="25%" width="50%" height="140"/><text x="100%" y="-16">12:01:00 · allowed 1 · denied 2</text>`,
		"allowed: at most 3 per 1m, at 12:00:00", "denied: at most 2 per 1m, at 12:01:00",
		"&lt;b&gt; per 1s, above the chart",
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "shadow", "there was none")
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "style=", "the console's pages allow none")

	c.Times = c.Times[:1]
	require.Empty(t, draw(t, c), "one point is not a line")
}

// A limit is a line if it leaves the values some height, or if there are no values.
func TestLimitsWithinReach(t *testing.T) {
	for highest, drawn := range map[float64]bool{0: true, 1: false, 5: true, 500: true} {
		c := falling(highest)
		c.Limits = []Limit{{"10 per 1s", 10}}
		page := draw(t, c)
		require.Equal(t, drawn, strings.Contains(page, `<line class="limit"`), highest)
		require.Equal(t, !drawn, strings.Contains(page, "10 per 1s, above the chart"), highest)
		require.NotContains(t, page, "-0", highest)
	}
}

// The texts of limits do not stand on one another, however near their lines are.
func TestTextsOfLimitsStandApart(t *testing.T) {
	c := falling(100)
	c.Limits = []Limit{{"e", 90}, {"c", 50}, {"b", 50}, {"d", 52}, {"a", 10}}
	lines := c.draw().Limits
	require.Len(t, lines, 5)
	for i := range lines {
		require.LessOrEqual(t, lines[i].TextAt, lines[i].At)
		if i > 0 {
			require.LessOrEqual(t, lines[i].TextAt, lines[i-1].TextAt-textHeight)
		}
	}
	for _, alone := range []int{0, 4} {
		require.InDelta(t, lines[alone].At, lines[alone].TextAt, 0, "there is room")
	}
	require.InDelta(t, lines[3].At, lines[1].TextAt, 0, "no line crosses a text")
}

// falling has a value, and then none.
func falling(value float64) *Chart {
	return &Chart{
		Times: every(time.Second, 2), Allowed: []float64{value, 0}, Denied: []float64{0, 0}, Shadow: []float64{0, 0},
	}
}

// An axis begins at 0, ends at or above all values, and has few steps that people can read.
func TestValuesOnTheAxis(t *testing.T) {
	for top, want := range map[float64]string{
		0: "0 1", 1: "0 1", 2: "0 1 2", 7: "0 2 4 6 8", 36: "0 10 20 30 40", 99: "0 20 40 60 80 100",
		1234: "0 500 1,000 1,500", 0.3: "0 0.1 0.2 0.3", 2.5: "0 0.5 1 1.5 2 2.5", 0.004: "0 0.001 0.002 0.003 0.004",
	} {
		c := falling(top)
		var got []string
		for _, v := range c.draw().Values {
			got = append(got, v.Text)
		}
		require.Equal(t, want, strings.Join(got, " "), top)
	}
	for top := 1e-3; top < 1e12; top *= 1.37 {
		for _, v := range []float64{top, math.Ceil(top)} {
			d := falling(v).draw()
			require.GreaterOrEqual(t, len(d.Values), 2, v)
			require.LessOrEqual(t, len(d.Values), maxSteps+2, v)
			require.InDelta(t, height, d.Values[0].At, 0, v)
			require.InDelta(t, 0, d.Values[len(d.Values)-1].At, 0.01, v)
			first, _, _ := strings.Cut(d.Lines[0].Points, " ")
			at, err := strconv.Atoi(strings.TrimPrefix(first, "0,"))
			require.NoError(t, err)
			require.True(t, at >= 0 && at <= 500, "%v: %s", v, first)
		}
	}
}

func TestTicksOfTime(t *testing.T) {
	for _, tc := range []struct {
		from  time.Time
		width time.Duration
		want  string
	}{
		{noon, 7 * time.Second, "12:00:00 12:00:02 12:00:04 12:00:06"},
		{noon.Add(3 * time.Second), 20 * time.Minute, "12:05 12:10 12:15 12:20"},
		{noon, 20 * time.Hour, "12:00 18:00 Feb 1 06:00"},
		{noon, 3 * day, "Feb 1 Feb 2 Feb 3"},
		{noon, 400 * day, "2026-04-07 2026-08-13 2026-12-19"},
	} {
		c := &Chart{Times: []time.Time{tc.from, tc.from.Add(tc.width)}}
		var got []string
		for _, k := range c.ticks() {
			got = append(got, k.Text)
			require.True(t, k.At >= 0 && k.At <= 100)
		}
		require.Equal(t, tc.want, strings.Join(got, " "), tc.width)
	}
}

// The pointer meets each place of the width, and the moments of several days have the day.
func TestColumnsCoverTheWidth(t *testing.T) {
	zeros := make([]float64, 6)
	c := &Chart{Times: append(every(time.Second, 5), noon.Add(day)), Allowed: zeros, Denied: zeros, Shadow: zeros}
	at := 0.0
	for _, column := range c.columns(c.series()) {
		from, err := strconv.ParseFloat(column.From, 64)
		require.NoError(t, err)
		width, err := strconv.ParseFloat(column.Width, 64)
		require.NoError(t, err)
		require.InDelta(t, at, from, 0.02)
		at = from + width
	}
	require.InDelta(t, 100, at, 0.02)
	require.Equal(t, "2026-01-31 12:00:00 · allowed 0", c.columns(c.series())[0].Text)
}

func TestNumbersAsPeopleReadThem(t *testing.T) {
	for want, v := range map[string]float64{
		"0": 0, "0.00056": 2.0 / 3600, "0.42": 0.417, "1.2": 1.167, "10": 9.96, "31.7": 31.66, "999.9": 999.94,
		"1,000": 1000.4, "1,234,567": 1234567,
	} {
		require.Equal(t, want, Number(v))
	}
}
