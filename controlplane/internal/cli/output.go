package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// output is how a command prints data.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

// AddFlags adds --output.
func (o *output) AddFlags(cmd *cobra.Command) {
	addWordFlag(cmd, (*string)(o), "output", "o", string(outputText), "how to print, as `format` text or json",
		string(outputText), string(outputJSON))
}

// print prints a value as JSON, or the text of it.
func (o output) print(cmd *cobra.Command, value any, text func(*strings.Builder)) error {
	if o == outputJSON {
		return printJSON(cmd.OutOrStdout(), value)
	}
	var b strings.Builder
	text(&b)
	_, err := io.WriteString(cmd.OutOrStdout(), b.String())
	return err
}

// printJSON prints a value for programs. It escapes characters that are not printable, because it
// may go to a terminal: JSON itself lets C1 controls through.
func printJSON(w io.Writer, value any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(w, printable.JSON(text.String(), unprintable))
	return err
}

// unprintable reports whether a character is not printable. In JSON only strings have such
// characters, apart from line ends.
func unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

// replaceFile writes a file whole or not at all: it writes another file and renames it. An error
// that the other file cannot be made names the file that the user knows.
func replaceFile(name string, mode os.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".sluice-*"+filepath.Ext(name))
	var of *os.PathError
	if errors.As(err, &of) {
		of.Path = name
	}
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // if it was not renamed
	if err := errors.Join(write(f), f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// written is a file that a flag names, for what a command writes beside its output.
type written struct {
	flag, name string
	mode       os.FileMode
}

// with makes the file before run begins, and puts it in its place when run has written it whole.
// It does not replace a file that the command reads. Without a name run gets nil.
func (o *written) with(reads []string, run func(io.Writer) error) error {
	if o.name == "" {
		return run(nil)
	}
	info, err := os.Stat(o.name)
	isRead := func(file string) bool {
		other, err := os.Stat(file)
		return err == nil && os.SameFile(info, other)
	}
	switch {
	case err != nil: // there is none yet
	case !info.Mode().IsRegular():
		return fmt.Errorf("write %s: %w", o.flag, &input.Irregular{Name: o.name, Mode: info.Mode()})
	case slices.ContainsFunc(reads, isRead):
		return usageError(fmt.Errorf("%s %s would replace a file that is read", o.flag, o.name), "give it another name")
	}
	var failed error // of what is written
	err = replaceFile(o.name, o.mode, func(w io.Writer) error {
		failed = run(w)
		return failed
	})
	if err != nil && failed == nil {
		return fmt.Errorf("write %s: %w", o.flag, err)
	}
	return err
}

// printTable prints rows in aligned columns, an empty cell as "-".
func printTable(b *strings.Builder, rows [][]string) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable.Text(cmp.Or(cell, "-"))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	_ = t.Flush() // a builder does not fail
}

// number prints a revision, none as empty.
func number(revision uint64) string {
	if revision == 0 {
		return ""
	}
	return strconv.FormatUint(revision, 10)
}

// moment prints an instant, none as empty.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// count prints "1 proxy" or "2 proxies".
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// word is a flag's value that is one of a few words.
type word struct {
	value *string
	words []string
}

// addWordFlag adds a flag that takes one of these words. Otherwise is its value without the flag,
// which may be none of the words.
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

// Type names the flag's value in help, unless its usage does.
func (w *word) Type() string { return "word" }
