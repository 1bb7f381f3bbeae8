package access

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// eachLine reads each line that has words, and joins what is wrong with the first of them. Both
// files are written by people: with empty lines, comments from a word that starts with # to the
// end of the line, line ends of any system and a byte order mark.
func eachLine(file string, text []byte, maxProblems int, read func(line int, words []string) error) error {
	var problems []error
	number := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		number++
		words := strings.Fields(string(line))
		if i := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(word, "#") }); i >= 0 {
			words = words[:i]
		}
		if len(words) == 0 || len(problems) == maxProblems {
			continue
		}
		if err := read(number, words); err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %w", file, number, err))
		}
	}
	return errors.Join(problems...)
}
