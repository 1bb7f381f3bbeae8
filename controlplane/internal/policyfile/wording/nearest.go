package wording

import "strings"

// nearest is the word a person most likely meant by s, or "" where none is
// near: at most a third of its letters, and at least one, may differ.
func nearest(s string, words []string) string {
	const longest = 64 // no field or word is longer; bounds the work on hostile input
	if len(s) > longest {
		return ""
	}
	s = strings.ToLower(s)
	best, bestDistance := "", 0
	for _, w := range words {
		d := distance(s, w)
		if d <= max(1, len(w)/3) && (best == "" || d < bestDistance) {
			best, bestDistance = w, d
		}
	}
	return best
}

// distance counts the insertions, deletions, substitutions and swaps
// of two side by side that turn a into b (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
