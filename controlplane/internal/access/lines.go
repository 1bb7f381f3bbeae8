package access

import (
	"bytes"
	"iter"
	"strings"
)

// lines returns the number of each line that has words, from 1, and its words.
// Both files are written by people: with empty lines, comments from a word that
// starts with # to the end of the line, line ends of any system and a byte order
// mark.
func lines(text []byte) iter.Seq2[int, []string] {
	return func(yield func(int, []string) bool) {
		number := 0
		for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
			number++
			words := strings.Fields(string(line))
			for i, word := range words {
				if strings.HasPrefix(word, "#") {
					words = words[:i]
					break
				}
			}
			if len(words) > 0 && !yield(number, words) {
				return
			}
		}
	}
}
