package fleet

import (
	"errors"
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
)

// scale is the axis of what a picture compares.
type scale struct {
	ticks plot.ConstantTicks
	log   bool
}

var (
	percents = scale{ticks: plot.ConstantTicks{{Value: 85, Label: "85 %"}, {Value: 90, Label: "90 %"}, {Value: 95, Label: "95 %"}, {Value: 100, Label: "100 %"}, {Value: 101}}}
	shares   = scale{ticks: plot.ConstantTicks{{Value: 0.001, Label: "0.001"}, {Value: 0.01, Label: "0.01"}, {Value: 0.1, Label: "0.1"}, {Value: 1, Label: "1"}}, log: true}
)

// marks tell the patterns of demand apart, by shape and by color.
var marks = []struct {
	shape draw.GlyphDrawer
	color color.Color
}{
	{draw.CircleGlyph{}, page.Blue}, {draw.BoxGlyph{}, page.Orange}, {draw.PyramidGlyph{}, page.Green}, {draw.CrossGlyph{}, page.Purple},
	{draw.PlusGlyph{}, page.Ink}, {draw.RingGlyph{}, page.Blue}, {draw.SquareGlyph{}, page.Orange}, {draw.TriangleGlyph{}, page.Green},
}

// picture draws a value of each run: a line for each limit, a mark for each pattern of
// demand.
func (f figures) picture(title string, axis scale, value func(run) float64) ([]byte, error) {
	if len(f) == 0 || len(f) > len(marks) {
		return nil, errors.New("more patterns of demand than marks, or none")
	}
	var y plot.ConstantTicks
	rows := len(f[0])
	for i, r := range f[0] {
		y = append(y, plot.Tick{Value: float64(rows - i), Label: fmt.Sprintf("%s, %d proxies", r.Limit, r.Proxies)})
	}
	p := page.NewChart(title, axis.ticks, y)
	for i, runs := range f {
		var points plotter.XYs
		for j, r := range runs {
			beside := (float64(len(f)-1)/2 - float64(i)) * 0.09 // so that none hides another
			points = append(points, plotter.XY{X: value(r), Y: float64(rows-j) + beside})
		}
		s, err := plotter.NewScatter(points)
		if err != nil {
			return nil, err
		}
		s.Shape, s.Color, s.Radius = marks[i].shape, marks[i].color, 2
		p.Add(s)
		p.Legend.Add(runs[0].Demand, s)
	}
	p.X.Min, p.X.Max = axis.ticks[0].Value, axis.ticks[len(axis.ticks)-1].Value
	if axis.log {
		p.X.Scale = plot.LogScale{}
	}
	p.Y.Min, p.Y.Max = 0.5, float64(rows)+0.5
	p.Legend.Left, p.Legend.Top, p.Legend.XOffs, p.Legend.Padding = true, true, 5, 2.5
	return page.SVG(p, 570, vg.Length(50+28*rows))
}
