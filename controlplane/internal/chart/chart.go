// Package chart draws what came of requests over time, as lines of an SVG in a page.
//
// Its invariant: a line has a name of its own and numbers, and nothing that a client or a
// policy says. It must never import what it draws.
package chart

import (
	"fmt"
	"slices"
	"strings"
)

// Height is that of a chart. An element of a series is 1 wide.
const Height = 1000

// Line is what a chart draws of a series, and its highest point in words.
type Line[N int64 | float64] struct {
	Name   string // allowed, denied or shadow
	Points string // of a polyline
	Most   N
	At     int // the element that has the most
}

// Lines draws series on one scale, without those of nothing behind the first.
func Lines[N int64 | float64](allowed, denied, shadow []N) (list []Line[N]) {
	scale := slices.Max(slices.Concat([]N{1}, allowed, denied, shadow))
	for i, series := range [][]N{allowed, denied, shadow} {
		most := slices.Max(series)
		if i > 0 && most == 0 {
			continue
		}
		var points strings.Builder
		for at, n := range series {
			fmt.Fprintf(&points, "%d,%d ", at, int64(Height-Height*n/scale))
		}
		list = append(list, Line[N]{[]string{"allowed", "denied", "shadow"}[i], points.String(), most, slices.Index(series, most)})
	}
	return list
}
