package message

import "strings"

// Nearest is the word a person most likely meant by s, or "" where none is
// near: at most a third of its letters, and at least one, may differ.
func Nearest(s string, words []string) string {
	const longest = 64 // no field or word is longer; bounds the work on hostile input
	if len(s) > longest {
		return ""
	}
	best, least := "", longest
	for _, w := range words {
		if d := distance(strings.ToLower(s), w); d <= max(1, len(w)/3) && d < least {
			best, least = w, d
		}
	}
	return best
}

// distance counts the insertions, deletions, substitutions and swaps
// of two side by side that turn a into b (optimal string alignment).
func distance(a, b string) int {
	d := make([][]int, len(a)+1) // between the first i bytes of a and the first j of b
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j], d[i][j-1], d[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
