package plots

import (
	"errors"
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
)

// Requests stand above the counts: up from this line if they were admitted, down if
// they were denied.
const requestLine = 27.0

// picture draws the run: above, each request as a line; below, how many were
// admitted in the last window's length as an area, and what the algorithm has
// counted as lines.
func (r run) picture() ([]byte, error) {
	var x plot.ConstantTicks
	for s := 0; s <= lengthMs/1000; s += 5 {
		x = append(x, plot.Tick{Value: float64(s), Label: fmt.Sprint(s, " s")})
	}
	y := plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 10, Label: "10"}, {Value: 20, Label: "20"}, {Value: requestLine + 2, Label: "yes"}, {Value: requestLine - 2, Label: "no"}}
	p := page.NewChart(fmt.Sprintf("%s: %d of %d requests admitted, at most %d in any 10 s", r.name, r.admitted(), len(r.requests), r.highest()), x, y)
	p.Legend.Top, p.Legend.YOffs = true, -50

	d := drawing{Plot: p}
	area := d.steps(lengthMs/10, func(i int) plotter.XY { return plotter.XY{X: float64(i) / 100, Y: float64(r.recent(int64(i) * 10))} })
	area.Color, area.FillColor = page.Blue, page.Light
	p.Legend.Add("admitted in the last 10 s", area)
	for i, used := range r.used {
		line := d.steps(len(used)-1, func(j int) plotter.XY { return plotter.XY{X: float64(j*sampleMs) / 1000, Y: float64(used[j])} })
		line.Color, line.Width = page.Purple, 1.4
		if i > 0 {
			line.Color, line.Dashes = page.Green, []vg.Length{1.5, 1.5}
		}
		p.Legend.Add(fmt.Sprintf("used, of %d", r.limits[i]), line)
	}
	limit := d.line(plotter.XY{X: 0, Y: 10}, plotter.XY{X: lengthMs / 1000, Y: 10})
	limit.Dashes = []vg.Length{5, 3}
	p.Legend.Add("the limit", limit)
	for _, q := range r.requests {
		at := float64(q.atMs) / 1000
		to, ink := requestLine-3, page.Orange
		if q.allowed {
			to, ink = requestLine+4, page.Blue
		}
		mark := d.line(plotter.XY{X: at, Y: requestLine}, plotter.XY{X: at, Y: to})
		mark.Color, mark.Width = ink, 1.2
	}
	if d.err != nil {
		return nil, d.err
	}
	return page.SVG(p, 570, 190)
}

// drawing adds lines to a plot and keeps the first error.
type drawing struct {
	*plot.Plot
	err error
}

// steps draws the values of 0 to n as a line that keeps each until the next one.
func (d *drawing) steps(n int, value func(int) plotter.XY) *plotter.Line {
	points := plotter.XYs{value(0)}
	for i := 1; i <= n; i++ {
		if p := value(i); i == n || p.Y != points[len(points)-1].Y {
			points = append(points, p)
		}
	}
	line := d.line(points...)
	line.StepStyle = plotter.PostStep
	return line
}

func (d *drawing) line(points ...plotter.XY) *plotter.Line {
	line, err := plotter.NewLine(plotter.XYs(points))
	if err != nil {
		d.err = errors.Join(d.err, err)
		return &plotter.Line{}
	}
	line.Width, line.Color = 0.8, page.Ink
	d.Add(line)
	return line
}
