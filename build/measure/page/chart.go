package page

import (
	"bytes"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The colors of pictures. Shapes differ as well, so that nothing is told apart by
// color alone.
var (
	Ink    = color.RGBA{0x24, 0x29, 0x2f, 0xff}
	Gray   = color.RGBA{0xd0, 0xd7, 0xde, 0xff}
	Blue   = color.RGBA{0x05, 0x50, 0xae, 0xff}
	Light  = color.RGBA{0x9d, 0xcb, 0xfa, 0xff}
	Orange = color.RGBA{0xbc, 0x4c, 0x00, 0xff}
	Purple = color.RGBA{0x82, 0x50, 0xdf, 0xff}
	Green  = color.RGBA{0x1a, 0x7f, 0x37, 0xff}
)

// FontSize is that of all text but titles.
const FontSize = vg.Length(9)

// NewChart is a chart with a grid and without anything in it.
func NewChart(title string, x, y plot.ConstantTicks) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	p := plot.New()
	p.Title.Text, p.Title.Padding, p.Title.TextStyle.Font.Size = title, FontSize, 1.2*FontSize
	p.Legend.TextStyle.Font.Size = FontSize
	p.X.Tick.Marker, p.Y.Tick.Marker = x, y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Tick.Label.Font.Size, axis.Width, axis.Tick.Length = FontSize, 0, 0
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = Gray, Gray
	p.Add(grid)
	return p
}

// SVG draws the chart.
func SVG(p *plot.Plot, width, height vg.Length) ([]byte, error) {
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Path())
	const margin = 6
	p.Draw(draw.Crop(whole, margin, -margin, margin, -margin))
	var out bytes.Buffer
	_, err := canvas.WriteTo(&out)
	// Fonts whose letters are as wide, for those who lack the first.
	return bytes.ReplaceAll(out.Bytes(), []byte("Liberation Sans;"), []byte("Liberation Sans,Arimo,Helvetica,Arial,sans-serif;")), err
}
