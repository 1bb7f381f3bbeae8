package decision

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
)

// picture draws what each plain case adds: a bar to the median of the rounds and a
// line from the lowest to the highest of them.
func (f figures) picture() ([]byte, error) {
	var medians plotter.Values
	var ends plotter.XYLabels
	var ranges struct {
		plotter.XYs
		plotter.XErrors
	}
	var x, y plot.ConstantTicks
	for share := -0.25; share <= 1; share += 0.25 {
		x = append(x, plot.Tick{Value: share, Label: fmt.Sprintf("%.2f", share)})
	}
	for _, m := range slices.Backward(f.Cases) { // the first one is on top
		if !m.plain() {
			continue
		}
		s, at := m.added(), float64(len(y))
		y = append(y, plot.Tick{Value: at, Label: m.Title})
		medians = append(medians, s.Median)
		ranges.XYs = append(ranges.XYs, plotter.XY{X: s.Median, Y: at})
		ranges.XErrors = append(ranges.XErrors, struct{ Low, High float64 }{s.Median - s.Min, s.Max - s.Median})
		ends.XYs, ends.Labels = append(ends.XYs, plotter.XY{X: max(s.Max, 0), Y: at}), append(ends.Labels, fmt.Sprintf("%+.2f", s.Median))
	}
	p := page.NewChart("CPU that a filter adds to a request, as a share of the request without one", x, y)
	bars, err := plotter.NewBarChart(medians, 10)
	if err != nil {
		return nil, err
	}
	bars.Horizontal, bars.Color, bars.LineStyle.Width = true, page.Light, 0
	lines, err := plotter.NewXErrorBars(ranges)
	if err != nil {
		return nil, err
	}
	lines.CapWidth, lines.Color = 0, page.Ink
	labels, err := plotter.NewLabels(ends)
	if err != nil {
		return nil, err
	}
	labels.Offset = vg.Point{X: 5, Y: -page.FontSize / 3}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Size = page.FontSize
	}
	p.Add(bars, lines, labels)
	p.X.Max += 0.1 // for the last label
	return page.SVG(p, 570, vg.Length(50+16*len(y)))
}
