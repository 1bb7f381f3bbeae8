package replay

import (
	"slices"
	"time"
)

// timeline divides the time of a log into at most MaxPoints elements of equal width.
// As time goes on they become wider.
type timeline struct {
	width  int // index into widths
	first  int64
	count  int
	series []*series
}

// series counts over a timeline.
type series []int64

// widths are multiples of those before them, and divide a day as clocks do.
var widths = func() (ns []int64) {
	for _, seconds := range []int64{
		1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400,
		2 * 86400, 4 * 86400, 8 * 86400, 16 * 86400, 32 * 86400, 320 * 86400,
	} {
		ns = append(ns, seconds*int64(time.Second))
	}
	return ns
}()

func newTimeline(startNs int64) *timeline {
	return &timeline{first: startNs / widths[0]}
}

// at returns the element of an instant, none of which is before the start.
func (t *timeline) at(ns int64) int {
	for {
		i := int(ns/widths[t.width] - t.first)
		if i < MaxPoints || t.width == len(widths)-1 {
			i = min(max(i, 0), MaxPoints-1)
			t.count = max(t.count, i+1)
			return i
		}
		t.widen()
	}
}

func (t *timeline) widen() {
	ratio := widths[t.width+1] / widths[t.width]
	first := t.first / ratio
	for _, s := range t.series {
		var wide series
		for i, n := range *s {
			wide.add(int((t.first+int64(i))/ratio-first), n)
		}
		*s = wide
	}
	t.count = int((t.first+int64(t.count)-1)/ratio-first) + 1
	t.first, t.width = first, t.width+1
}

func (t *timeline) new() *series {
	s := new(series)
	t.series = append(t.series, s)
	return s
}

func (s *series) add(i int, n int64) {
	for len(*s) <= i {
		*s = append(*s, 0)
	}
	(*s)[i] += n
}

// whole returns the counts of all elements.
func (t *timeline) whole(s *series) []int64 {
	return append(slices.Clone(*s), make([]int64, t.count-len(*s))...)
}

func (t *timeline) report() Timeline {
	w := widths[t.width]
	return Timeline{StartNs: t.first * w, WidthNs: w, Count: t.count}
}
