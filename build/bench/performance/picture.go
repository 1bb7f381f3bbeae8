package performance

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Where things are in the picture, in pixels. Titles end where bars begin, and
// figures stand after the longest of them.
const (
	width   = 760
	left    = 320
	right   = width - 160
	top     = 56
	row     = 22
	highest = 1.0 // share at the end of a bar; longer ones are cut, and say so
)

// style has a palette for each background, and never tells things apart by
// color alone.
const style = `
text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#24292f}
.title{font-size:13px;font-weight:600}
.soft{fill:#57606a}
.back{fill:#ffffff}
.grid{stroke:#d0d7de}
.bar{fill:#54aeff}
.spread{stroke:#24292f;stroke-width:1.4}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}
.soft{fill:#9da7b3}
.back{fill:#0d1117}
.grid{stroke:#30363d}
.bar{fill:#388bfd}
.spread{stroke:#e6edf3}
}
`

func x(share float64) float64 {
	return left + math.Max(0, math.Min(share, highest))*(right-left)/highest
}

// Picture draws what each case adds, with one worker and an upstream: a bar to
// the median and a line from the least to the most of the rounds.
func (r Run) Picture() []byte {
	var cases []Case
	for _, c := range r.Cases {
		if len(c.Visits) > 0 && c.Workers == 1 && !c.Direct {
			cases = append(cases, c)
		}
	}
	height := top + row*len(cases) + 14
	const title = "CPU that a filter adds to a request, as a share of the request without one"
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", title, style)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text class="title" x="14" y="20">%s</text>`+"\n", title)
	for share := 0.0; share <= highest; share += 0.25 {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/>`+"\n", x(share), top-8, height-10)
		fmt.Fprintf(&b, `<text class="soft" x="%.1f" y="%d" text-anchor="middle">%.2f</text>`+"\n", x(share), top-14, share)
	}
	for i, c := range cases {
		s, y := c.added(), top+row*i
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, y+14, html.EscapeString(c.Title))
		fmt.Fprintf(&b, `<rect class="bar" x="%d" y="%d" width="%.1f" height="%d"/>`+"\n", left, y+3, x(s.Median)-left, row-8)
		fmt.Fprintf(&b, `<path class="spread" d="M%.1f %dH%.1f"/>`+"\n", x(s.Least), y+10, x(s.Most))
		figure := fmt.Sprintf("%+.2f", s.Median)
		if s.Median > highest {
			figure += ", beyond the edge"
		}
		fmt.Fprintf(&b, `<text class="soft" x="%.1f" y="%d">%s</text>`+"\n", math.Max(x(s.Most), x(s.Median))+6, y+14, figure)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}
