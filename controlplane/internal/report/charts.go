package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
)

// top is the height of a chart in its own units.
const top = 1000

// line is what a chart draws of a series, and its highest point in words.
type line struct {
	Name   string
	Points string // of an SVG polyline; an element of the timeline is 1 wide
	Most   int64
	MostNs int64 // when
}

// lines draws what came of a rule's requests over the timeline, on one scale.
func lines(t replay.Timeline, s replay.Series) (list []line) {
	all := slices.Concat([]int64{1}, s.Allowed, s.Denied, s.Shadow)
	for i, counts := range [][]int64{s.Allowed, s.Denied, s.Shadow} {
		most := slices.Max(counts)
		if i > 0 && most == 0 {
			continue
		}
		var points strings.Builder
		for at, n := range counts {
			fmt.Fprintf(&points, "%d,%d ", at, top-top*n/slices.Max(all))
		}
		list = append(list, line{
			Name: []string{"allowed", "denied", "shadow"}[i], Points: points.String(),
			Most: most, MostNs: t.StartNs + int64(slices.Index(counts, most))*t.WidthNs,
		})
	}
	return list
}
