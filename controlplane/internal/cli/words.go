package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// word is a flag's value that is one of a few words.
type word struct {
	value *string
	words []string
}

// addWordFlag adds a flag that takes one of these words. Otherwise is what holds without the
// flag, and may be none of them.
func addWordFlag(cmd *cobra.Command, value *string, name, shorthand, otherwise, usage string, words ...string) {
	*value = otherwise
	cmd.Flags().VarP(&word{value, words}, name, shorthand, usage)
}

// String, Set and Type make word a flag's value.
func (w *word) String() string { return *w.value }

// Set takes the flag's text.
func (w *word) Set(text string) error {
	if !slices.Contains(w.words, text) {
		last := len(w.words) - 1
		return errors.New("must be " + strings.Join(w.words[:last], ", ") + " or " + w.words[last])
	}
	*w.value = text
	return nil
}

// Type names the flag's value in help where its usage does not.
func (w *word) Type() string { return "word" }
