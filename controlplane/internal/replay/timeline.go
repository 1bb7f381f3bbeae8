package replay

import "time"

// timeline counts in columns over the time of a log, which it divides into at most MaxPoints
// elements of equal width. As time goes on they become wider.
type timeline struct {
	width    int   // index into widths
	first    int64 // element, from 1970
	columns  int
	elements [][]int64 // by column
}

// widths are multiples of the ones before, and divide a day as clocks do.
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

// at returns the counts of an instant, which is not before the start.
func (t *timeline) at(ns int64) []int64 {
	for ns/widths[t.width]-t.first >= MaxPoints && t.width < len(widths)-1 {
		t.widen()
	}
	i := min(max(ns/widths[t.width]-t.first, 0), MaxPoints-1)
	for int64(len(t.elements)) <= i {
		t.elements = append(t.elements, make([]int64, t.columns))
	}
	return t.elements[i]
}

func (t *timeline) widen() {
	ratio := widths[t.width+1] / widths[t.width]
	first := t.first / ratio
	var wide [][]int64
	for i, counts := range t.elements {
		at := int((t.first+int64(i))/ratio - first)
		if at == len(wide) {
			wide = append(wide, counts)
			continue
		}
		for column, n := range counts {
			wide[at][column] += n
		}
	}
	t.elements = wide
	t.first = first
	t.width++
}

// column returns the counts of a column.
func (t *timeline) column(i int) []int64 {
	counts := make([]int64, len(t.elements))
	for at := range counts {
		counts[at] = t.elements[at][i]
	}
	return counts
}

func (t *timeline) report() Timeline {
	w := widths[t.width]
	return Timeline{StartNs: t.first * w, WidthNs: w, Count: len(t.elements)}
}
