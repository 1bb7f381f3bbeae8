package report

import (
	"encoding/base64"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-analyze/charts"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
)

// Picture is a chart in both themes, and in words.
type Picture struct {
	Light   template.URL
	Dark    template.Srcset
	Caption string
	Text    string
}

const (
	width      = 540
	height     = 200
	rowHeight  = 24 // of a heat strip
	maxColumns = 60 // of a heat strip
)

// theme is how charts look. Its colors of allowed, denied and shadow are told apart
// also by people who see no red and green.
type theme struct {
	name   string
	ground charts.Color
	colors []charts.Color
}

var (
	light = theme{charts.ThemeLight, charts.ColorFromHex("#ffffff"), colors("#0868ac", "#c2410c", "#6b7280")}
	dark  = theme{charts.ThemeDark, charts.ColorFromHex("#161b22"), colors("#60b3f0", "#fb923c", "#a8b0bd")}
)

func colors(hex ...string) (list []charts.Color) {
	for _, h := range hex {
		list = append(list, charts.ColorFromHex(h))
	}
	return list
}

// palette has the theme's colors of these series: 0 allowed, 1 denied, 2 shadow.
func (t theme) palette(series ...int) charts.ColorPalette {
	var list []charts.Color
	for _, i := range series {
		list = append(list, t.colors[i])
	}
	return charts.GetTheme(t.name).WithSeriesColors(list).WithBackgroundColor(t.ground)
}

// draw renders a chart in both themes.
func draw(height int, caption, text string, chart func(*charts.Painter, theme) error) (Picture, error) {
	var urls []string
	for _, theme := range []theme{light, dark} {
		painter := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height})
		if err := chart(painter, theme); err != nil {
			return Picture{}, fmt.Errorf("draw a chart: %w", err)
		}
		svg, err := painter.Bytes()
		if err != nil {
			return Picture{}, fmt.Errorf("draw a chart: %w", err)
		}
		urls = append(urls, "data:image/svg+xml;base64,"+base64.StdEncoding.EncodeToString(svg))
	}
	return Picture{template.URL(urls[0]), template.Srcset(urls[1]), caption, text}, nil //nolint:gosec // base64 alone
}

// labels are the times of a series' elements.
func labels(t replay.Timeline) []string {
	layout := "15:04:05"
	switch {
	case t.WidthNs >= int64(24*time.Hour):
		layout = "2006-01-02"
	case t.WidthNs*int64(t.Count) > int64(24*time.Hour):
		layout = "Jan 2 15:04"
	case t.WidthNs >= int64(time.Minute):
		layout = "15:04"
	}
	list := make([]string, t.Count)
	for i := range list {
		list[i] = accesslog.Time(t.StartNs + int64(i)*t.WidthNs).UTC().Format(layout)
	}
	return list
}

func floats(counts []int64) []float64 {
	list := make([]float64, len(counts))
	for i, n := range counts {
		list[i] = float64(n)
	}
	return list
}

// overTime draws what came of the requests in each element of the timeline.
func overTime(t replay.Timeline, r *replay.Rule) (Picture, error) {
	names, values, series := []string{"allowed"}, [][]float64{floats(r.Series.Allowed)}, []int{0}
	for i, counts := range [][]int64{r.Series.Denied, r.Series.Shadow} {
		if slices.ContainsFunc(counts, func(n int64) bool { return n > 0 }) {
			names = append(names, []string{"denied", "denied in shadow"}[i])
			values, series = append(values, floats(counts)), append(series, i+1)
		}
	}
	var text strings.Builder
	for i := range values {
		most := slices.Max(values[i])
		fmt.Fprintf(&text, "At most %.0f %s, at %s. ", most, names[i], labels(t)[slices.Index(values[i], most)])
	}
	return draw(height, "Requests per "+span(t.WidthNs), text.String(), func(p *charts.Painter, theme theme) error {
		o := charts.NewLineChartOptionWithData(values)
		o.Theme = theme.palette(series...)
		o.XAxis.Labels, o.XAxis.LabelCount = labels(t), 5
		o.Legend.SeriesNames = names
		o.Symbol = charts.Symbol{Shape: charts.SymbolNone}
		o.LineStrokeWidth = 2
		o.YAxis[0].Min = charts.Ptr(0.0)
		o.Padding = charts.NewBox(8, 8, 24, 8)
		return p.LineChart(o)
	})
}

// use draws what clients use on a logarithmic scale, and the limit.
func use(d *replay.Distribution, limit uint32, when string) (Picture, error) {
	used := []uint32{d.P50, d.P90, d.P99, d.P999, d.Max}
	values := [][]float64{nil, nil}
	for _, n := range used {
		values[0] = append(values[0], math.Log10(float64(max(n, 1))))
		values[1] = append(values[1], math.Log10(float64(max(limit, 1))))
	}
	text := fmt.Sprintf("Half of the times at most %d, 90%% at most %d, 99%% at most %d, 99.9%% at most %d, never more than %d. The limit is %d.",
		used[0], used[1], used[2], used[3], used[4], limit)
	return draw(height, "Units that a client asks for "+when+", by percentile", text, func(p *charts.Painter, theme theme) error {
		o := charts.NewLineChartOptionWithData(values)
		o.Theme = theme.palette(0, 1)
		o.XAxis.Labels = []string{"p50", "p90", "p99", "p99.9", "max"}
		o.Legend.SeriesNames = []string{"asked for", "limit"}
		o.LineStrokeWidth = 2
		top := math.Ceil(math.Log10(float64(max(used[4], limit, 10))))
		o.YAxis[0].Min, o.YAxis[0].Max, o.YAxis[0].LabelCount = charts.Ptr(0.0), charts.Ptr(top), int(top)+1
		o.YAxis[0].RangeValuePaddingScale = charts.Ptr(0.0)
		o.YAxis[0].ValueFormatter = func(v float64) string { return fmt.Sprintf("%.0f", math.Pow(10, v)) }
		o.Padding = charts.NewBox(8, 8, 24, 8)
		return p.LineChart(o)
	})
}

// heat draws when each of the most denied clients was denied.
func heat(t replay.Timeline, clients []replay.Client) (Picture, error) {
	each := (t.Count + maxColumns - 1) / maxColumns
	columns := (t.Count + each - 1) / each
	times := labels(t)
	names, at := make([]string, len(clients)), make([]string, columns)
	values := make([][]float64, len(clients))
	for i := range clients {
		names[i] = fmt.Sprint(i + 1)
		values[i] = make([]float64, columns)
		for j, n := range clients[i].Strip {
			values[i][j/each] += float64(n)
		}
		for j, n := range values[i] {
			if n == 0 {
				values[i][j] = charts.GetNullValue()
			}
		}
	}
	for j := range at {
		at[j] = times[j*each]
	}
	caption := "When the most denied clients were denied, numbered as in the table; per " + span(t.WidthNs*int64(each))
	return draw(rowHeight*len(clients)+60, caption, "The table has how often each was denied.", func(p *charts.Painter, theme theme) error {
		o := charts.NewHeatMapOptionWithData(values)
		o.Theme = theme.palette(1)
		o.XAxis.Labels, o.XAxis.LabelCount = at, 5
		o.YAxis.Labels = names
		o.ScaleMinValue = charts.Ptr(0.0)
		o.Padding = charts.NewBox(8, 8, 24, 8)
		return p.HeatMapChart(o)
	})
}

// span prints a whole number of seconds, minutes, hours or days.
func span(ns int64) string {
	for _, unit := range []struct {
		ns   int64
		name string
	}{{int64(24 * time.Hour), "day"}, {int64(time.Hour), "hour"}, {int64(time.Minute), "minute"}, {int64(time.Second), "second"}} {
		if n := ns / unit.ns; n > 0 && ns%unit.ns == 0 {
			if n == 1 {
				return unit.name
			}
			return fmt.Sprintf("%d %ss", n, unit.name)
		}
	}
	return time.Duration(ns).String()
}
