package main

import (
	"fmt"
	"strings"
)

// Where things are in a picture, in pixels.
const (
	width  = 760
	height = 232
	left   = 44
	right  = width - 14

	ticks  = 62 // the line that requests stand on, or hang from
	top    = 98 // of the chart of counts
	bottom = 206
	most   = 22 // units at top
)

// style has a palette for each background, and never tells things apart by
// color alone.
const style = `
text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#24292f}
.title{font-size:13px;font-weight:600}
.soft{fill:#57606a}
.back{fill:#ffffff}
.grid{stroke:#d0d7de;fill:none}
.allowed{stroke:#0550ae;stroke-width:1.8}
.denied{stroke:#bc4c00;stroke-width:1.4}
.recent{fill:#54aeff;fill-opacity:.38;stroke:#0969da}
.limit{stroke:#24292f;stroke-dasharray:6 4}
.used{stroke:#8250df;stroke-width:1.6;fill:none}
.second{stroke:#1a7f37;stroke-dasharray:2 2}
.key-used{fill:#8250df}
.key-second{fill:#1a7f37}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}
.soft{fill:#9da7b3}
.back{fill:#0d1117}
.grid{stroke:#30363d}
.allowed{stroke:#79c0ff}
.denied{stroke:#ffa657}
.recent{fill:#388bfd;fill-opacity:.32;stroke:#58a6ff}
.limit{stroke:#e6edf3}
.used{stroke:#d2a8ff}
.second{stroke:#7ee787}
.key-used{fill:#d2a8ff}
.key-second{fill:#7ee787}
}
`

func x(ms int64) float64 { return left + float64(ms)*(right-left)/lengthMs }
func y(units int) float64 {
	return bottom - float64(units)*(bottom-top)/most
}

// svg draws the run: above, each request as a line, up if it was allowed and
// down if it was denied; below, how many were allowed in the last window's
// length as an area, and what the algorithm has counted as lines.
func (r *run) svg() []byte {
	var b strings.Builder
	title := fmt.Sprintf("%s: %d of %d requests admitted, at most %d in any 10 s", r.name, r.admitted(), len(r.requests), r.most())
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", title, style)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text class="title" x="%d" y="20">%s</text>`+"\n", left, title)
	r.grid(&b)
	r.marks(&b)
	r.area(&b)
	r.lines(&b)
	fmt.Fprintf(&b, `<path class="limit" d="M%d %.1fH%d"/>`+"\n</svg>\n", left, y(10), right)
	return []byte(b.String())
}

// grid draws the seconds and the units.
func (r *run) grid(b *strings.Builder) {
	for ms := int64(0); ms <= lengthMs; ms += 5_000 {
		if ms%windowMs == 0 {
			fmt.Fprintf(b, `<path class="grid" d="M%.1f 34V%d"/>`+"\n", x(ms), bottom)
		}
		fmt.Fprintf(b, `<text class="soft" x="%.1f" y="%d" text-anchor="middle">%d s</text>`+"\n", x(ms), bottom+17, ms/1000)
	}
	for _, units := range []int{0, 10, 20} {
		fmt.Fprintf(b, `<path class="grid" d="M%d %.1fH%d"/>`+"\n", left, y(units), right)
		fmt.Fprintf(b, `<text class="soft" x="%d" y="%.1f" text-anchor="end">%d</text>`+"\n", left-6, y(units)+4, units)
	}
	fmt.Fprintf(b, `<path class="grid" d="M%d %dH%d"/>`+"\n", left, ticks, right)
	fmt.Fprintf(b, `<text class="soft" x="%d" y="%d" text-anchor="end">yes</text>`+"\n", left-6, ticks-8)
	fmt.Fprintf(b, `<text class="soft" x="%d" y="%d" text-anchor="end">no</text>`+"\n", left-6, ticks+16)
}

func (r *run) marks(b *strings.Builder) {
	for _, q := range r.requests {
		class, to := "denied", ticks+16
		if q.allowed {
			class, to = "allowed", ticks-24
		}
		fmt.Fprintf(b, `<path class="%s" d="M%.1f %dV%d"/>`+"\n", class, x(q.atMs), ticks, to)
	}
}

// area is the count of the last window's length, as steps.
func (r *run) area(b *strings.Builder) {
	fmt.Fprintf(b, `<path class="recent" d="M%d %d`, left, bottom)
	last := 0
	for ms := int64(0); ms <= lengthMs; ms += 10 {
		if n := r.recent(ms); n != last {
			fmt.Fprintf(b, "H%.1fV%.1f", x(ms), y(n))
			last = n
		}
	}
	fmt.Fprintf(b, "H%dV%dZ\"/>\n", right, bottom)
}

// lines are what each window says it has counted, and a legend.
func (r *run) lines(b *strings.Builder) {
	for i, used := range r.used {
		class, key := "used", "key-used"
		if i > 0 {
			class, key = "used second", "key-second"
		}
		fmt.Fprintf(b, `<path class="%s" d="M%d %.1f`, class, left, y(int(used[0])))
		for j, n := range used {
			if j > 0 && n != used[j-1] {
				fmt.Fprintf(b, "H%.1fV%.1f", x(int64(j)*sampleMs), y(int(n)))
			}
		}
		fmt.Fprintf(b, "H%d\"/>\n", right)
		fmt.Fprintf(b, `<text class="%s" x="%d" y="%d" text-anchor="end">line: used, of %d</text>`+"\n", key, right-4, top-2+i*15, r.limits[i])
	}
	fmt.Fprintf(b, `<text class="soft" x="%d" y="%d" text-anchor="end">area: admitted in the last 10 s; dashes: 10</text>`+"\n", right-130, top-2)
}
