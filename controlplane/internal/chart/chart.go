// Package chart draws what came of requests over time: an SVG for a page, with the values on
// an axis, a grid, ticks of time, limits as lines, and the values under the pointer.
//
// Its invariant: a page takes no script for it, and no style beyond CSS. All text goes through
// html/template, because the text of limits comes from a policy. It must never import what it draws.
package chart

import (
	"cmp"
	_ "embed"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CSS is the style of all charts of a page. It takes the colors --line, --faint, --allowed,
// --denied, --shadow and --limit from there.
//
//go:embed chart.css
var CSS string

//go:embed chart.svg.tmpl
var svgText string

var svg = template.Must(template.New("chart").Parse(svgText))

// Chart is what is drawn.
type Chart struct {
	Per   string      // what a value is for: "a second"
	Times []time.Time // of the values, in order; two make a line
	// Allowed, Denied and Shadow have a value for each of the times. Denied and Shadow are not
	// drawn if all their values are 0.
	Allowed, Denied, Shadow []float64
	Limits                  []Limit
}

// Values makes counts values.
func Values(counts []int64) []float64 {
	values := make([]float64, len(counts))
	for i, n := range counts {
		values[i] = float64(n)
	}
	return values
}

// Limit is a line across the chart, if it is in the reach of the values.
type Limit struct {
	Text string
	At   float64
}

// reach is how many times the highest value a limit may be for its line to be drawn: a higher one
// would leave the values no height.
const reach = 2

// maxSteps is how many steps an axis has at most.
const maxSteps = 5

// line is a series as the page has it.
type line struct {
	Name   string // which is its class
	Points string
	Most   string
	At     string // when it has the most
}

// tick is a step of an axis.
type tick struct {
	At   float64 // in percent of the width, of values in pixels
	Text string
	End  string // the class of a tick at an end of the axis: its text must not reach beyond that end
}

// limitLine is a limit that is drawn. Its text stands on the line, or above those that are near.
type limitLine struct {
	At, TextAt float64 // in pixels
	Text       string
}

// column is what the pointer shows of one time.
type column struct{ From, Width, Text string }

// drawing is a chart as the page has it.
type drawing struct {
	Per     string
	Lines   []line
	Values  []tick
	Times   []tick
	Limits  []limitLine
	Above   []string // limits out of reach
	Columns []column

	Head, Height, TickEnd, TimeAt, Scale int // see the constants
}

// Heights, and places from above, in pixels. The height of all is in chart.css: head, height, and as much
// as head for the times below.
const (
	head       = 28 // of what stands above the lines
	height     = 140
	tickEnd    = height + 4  // of the grid's line at a time, which goes a little below the lines
	timeAt     = height + 20 // of a time's text, below that
	textHeight = 14
)

// scale is the width and the height of the lines' own coordinates, which are stretched to the chart.
const scale = 1000

// HTML draws the chart, with what its lines mean in words below. It is empty for fewer than
// two times.
func (c *Chart) HTML() (template.HTML, error) {
	if len(c.Times) < 2 {
		return "", nil
	}
	var text strings.Builder
	err := svg.Execute(&text, c.draw())
	return template.HTML(text.String()), err //nolint:gosec // html/template has made it
}

func (c *Chart) draw() *drawing {
	series := c.series()
	highest, areWhole := 0.0, true
	for _, s := range series {
		for _, v := range s.values {
			highest = max(highest, v)
			areWhole = areWhole && v == math.Trunc(v)
		}
	}
	drawn, above := c.limits(highest)
	top := highest
	for _, l := range drawn {
		top = max(top, l.At)
	}
	step := valueStep(top, areWhole && len(drawn) == 0)
	top = math.Max(math.Ceil(top/step-1e-9), 1) * step
	d := &drawing{
		Per: c.Per, Limits: limitLines(drawn, top), Above: above, Times: c.ticks(), Columns: c.columns(series),
		Head: head, Height: height, TickEnd: tickEnd, TimeAt: timeAt, Scale: scale,
	}
	for v := 0.0; v < top+step/2; v += step {
		d.Values = append(d.Values, tick{At: y(v, top), Text: Number(v)})
	}
	for _, s := range series {
		d.Lines = append(d.Lines, c.line(s, top))
	}
	return d
}

// limits returns the limits in the reach of the values, the lowest first, and the others' texts.
func (c *Chart) limits(highest float64) (drawn []Limit, above []string) {
	for _, l := range c.Limits {
		if highest > 0 && l.At > reach*highest {
			above = append(above, l.Text)
		} else {
			drawn = append(drawn, l)
		}
	}
	slices.SortStableFunc(drawn, func(l, m Limit) int { return cmp.Compare(l.At, m.At) })
	return drawn, above
}

// limitLines places limits and their texts, from the lowest up. If lines are near each other, their texts
// stand above the highest of them.
func limitLines(limits []Limit, top float64) []limitLine {
	lines := make([]limitLine, len(limits))
	for i, l := range limits {
		lines[i] = limitLine{At: y(l.At, top), Text: l.Text}
	}
	textAt := math.Inf(1)
	for from := 0; from < len(lines); {
		to := from + 1
		for to < len(lines) && lines[to-1].At-lines[to].At < textHeight {
			to++
		}
		textAt = min(textAt, lines[to-1].At)
		for i := from; i < to; i++ {
			lines[i].TextAt = textAt
			textAt -= textHeight
		}
		from = to
	}
	return lines
}

// y is where a value is, in pixels from above.
func y(v, top float64) float64 { return math.Round(100*(height-height*v/top)) / 100 }

// named is a series with its name.
type named struct {
	name   string
	values []float64
}

// series returns those that are drawn.
func (c *Chart) series() []named {
	list := []named{{"allowed", c.Allowed}, {"denied", c.Denied}, {"shadow", c.Shadow}}
	return slices.DeleteFunc(list, func(s named) bool { return s.name != "allowed" && slices.Max(s.values) == 0 })
}

// at is where a time is, from 0 to 1.
func (c *Chart) at(t time.Time) float64 {
	first, last := c.Times[0], c.Times[len(c.Times)-1]
	return float64(t.Sub(first)) / float64(max(last.Sub(first), 1))
}

func (c *Chart) line(s named, top float64) line {
	var points strings.Builder
	for i, v := range s.values {
		if i > 0 {
			points.WriteByte(' ')
		}
		x, y := math.Round(scale*c.at(c.Times[i])), math.Round(scale-scale*v/top)
		points.WriteString(strconv.Itoa(int(x)) + "," + strconv.Itoa(int(y)))
	}
	most := slices.Max(s.values)
	return line{s.name, points.String(), Number(most), c.moment(c.Times[slices.Index(s.values, most)])}
}

// columns divide the width at the middle between two times.
func (c *Chart) columns(series []named) []column {
	list := make([]column, len(c.Times))
	percent := func(v float64) string { return strconv.FormatFloat(math.Round(1e4*v)/100, 'f', -1, 64) }
	from := 0.0
	for i, t := range c.Times {
		to := 1.0
		if i+1 < len(c.Times) {
			to = (c.at(t) + c.at(c.Times[i+1])) / 2
		}
		text := c.moment(t)
		for _, s := range series {
			text += " · " + s.name + " " + Number(s.values[i])
		}
		list[i] = column{percent(from), percent(to - from), text}
		from = to
	}
	return list
}

// valueStep is 1, 2 or 5 of some power of ten, so that the axis has few steps.
func valueStep(top float64, areWhole bool) float64 {
	step := 1.0
	for step*maxSteps < top {
		step *= 10
	}
	for top > 0 && step*maxSteps/10 >= top && (!areWhole || step > 1) {
		step /= 10
	}
	for _, part := range []float64{5, 2} {
		if smaller := step / part; smaller*maxSteps >= top && top > 0 && (!areWhole || smaller >= 1) {
			return nice(smaller)
		}
	}
	return nice(step)
}

// nice is a step without what dividing by ten has left behind.
func nice(step float64) float64 {
	v, _ := strconv.ParseFloat(strconv.FormatFloat(step, 'g', 6, 64), 64)
	return v
}

const day = 24 * time.Hour

// steps of time, as clocks have them. Longer ones are 2, 4, 8 and so on days.
var steps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, day,
}

// edge is how near an end of the chart a time's text would reach beyond it, in percent of the width.
const edge = 8

// ticks are the steps of time.
func (c *Chart) ticks() (list []tick) {
	first, last := c.Times[0], c.Times[len(c.Times)-1]
	fits := func(step time.Duration) bool { return last.Sub(first) <= (maxSteps-1)*step }
	step := steps[len(steps)-1]
	if i := slices.IndexFunc(steps, fits); i >= 0 {
		step = steps[i]
	}
	for !fits(step) {
		step *= 2
	}
	for t := first.Truncate(step); !t.After(last); t = t.Add(step) {
		if t.Before(first) {
			continue
		}
		k := tick{At: math.Round(1e4*c.at(t)) / 100, Text: c.tickText(t, step)}
		switch {
		case k.At < edge:
			k.End = "first"
		case k.At > 100-edge:
			k.End = "last"
		}
		list = append(list, k)
	}
	return list
}

func (c *Chart) tickText(t time.Time, step time.Duration) string {
	t = t.UTC()
	switch {
	case step >= day && c.Times[0].UTC().Year() != c.Times[len(c.Times)-1].UTC().Year():
		return t.Format(time.DateOnly)
	case step >= day || t.Truncate(day).Equal(t):
		return t.Format("Jan 2")
	case step < time.Minute:
		return t.Format(time.TimeOnly)
	}
	return t.Format("15:04")
}

// moment is a time as precisely as the chart has it: without the day where all are of one.
func (c *Chart) moment(t time.Time) string {
	if c.Times[0].UTC().Truncate(day).Equal(c.Times[len(c.Times)-1].UTC().Truncate(day)) {
		return t.UTC().Format(time.TimeOnly)
	}
	return t.UTC().Format(time.DateTime)
}

// Number is a value as people read it: two digits of a small one, one behind the point of
// others, and thousands apart.
func Number(v float64) string {
	if v < 10 {
		v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 2, 64), 64)
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	if v < 1000 {
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	}
	text := strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
