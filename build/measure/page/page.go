// Package page keeps what was measured in the documentation: the raw figures as
// JSON, and the tables and pictures made from them.
//
// Its invariant: of a page it changes only the sections between <!-- measured:
// NAME --> and <!-- end -->, and either all of them or none. It must not import a
// package that measures.
package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Figures are what one measurement found, as its page shows them.
type Figures struct {
	Page     string            // name of the page without .md
	Part     string            // of a page with figures of several measurements; else ""
	Raw      any               // kept beside the page, in PAGE.json or PAGE-PART.json; nil = nowhere
	Sections map[string]string // the text of each section, by name
	Pictures map[string][]byte // SVG, by file name in img
}

// files are what the figures make of a folder of documents, by their paths in it.
func (f Figures) files(docs string) (map[string][]byte, error) {
	before, err := os.ReadFile(filepath.Join(docs, f.Page+".md"))
	if err != nil {
		return nil, err
	}
	after, err := fill(string(before), f.Part, f.Sections)
	if err != nil {
		return nil, fmt.Errorf("fill %s.md: %w", f.Page, err)
	}
	files := map[string][]byte{f.Page + ".md": []byte(after)}
	for name, picture := range f.Pictures {
		files[filepath.Join("img", name)] = picture
	}
	if f.Raw == nil {
		return files, nil
	}
	raw, err := json.MarshalIndent(f.Raw, "", " ")
	files[rawName(f.Page, f.Part)] = append(raw, '\n')
	return files, err
}

func rawName(page, part string) string {
	if part != "" {
		page += "-" + part
	}
	return page + ".json"
}

// Stale lists the files in the folder of documents that are not what the figures
// make of them.
func (f Figures) Stale(docs string) ([]string, error) {
	files, err := f.files(docs)
	maps.DeleteFunc(files, func(name string, want []byte) bool {
		got, err := os.ReadFile(filepath.Join(docs, name))
		return err == nil && bytes.Equal(got, want)
	})
	return slices.Sorted(maps.Keys(files)), err
}

// Write writes the files into the folder of documents.
func (f Figures) Write(docs string) error {
	files, err := f.files(docs)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(docs, name), content, 0o644); err != nil { //nolint:gosec // for everybody to read
			return err
		}
	}
	return nil
}

// Read reads the raw figures that Write kept beside a page, or those of a part of it.
func Read(docs, page, part string, into any) error {
	text, err := os.ReadFile(filepath.Join(docs, rawName(page, part)))
	if err != nil {
		return err
	}
	return Decode(text, into)
}

// Decode reads figures. A field that is not known is an error: who writes the figures
// may have given one another name.
func Decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

var section = regexp.MustCompile(`(?s)(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)`)

// fill replaces the text of every section of a part: those whose names begin with the
// part's. A section without text is an error, and so is a text without a section.
func fill(page, part string, sections map[string]string) (string, error) {
	missing := maps.Clone(sections)
	var problems []error
	page = section.ReplaceAllStringFunc(page, func(old string) string {
		m := section.FindStringSubmatch(old)
		if !strings.HasPrefix(m[2], part) {
			return old
		}
		text, ok := missing[m[2]]
		delete(missing, m[2])
		if !ok || strings.Contains(old[len(m[1]):], "<!-- measured") {
			problems = append(problems, fmt.Errorf("section %s has no text, no end or a twin", m[2]))
		}
		return m[1] + text + m[3]
	})
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		problems = append(problems, fmt.Errorf("there is no section %s: <!-- measured: %s --> … <!-- end -->", name, name))
	}
	return page, errors.Join(problems...)
}

// Table is a table of Markdown. Its head and its rows are cells joined by " | ".
func Table(head string, rows ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", head, strings.Repeat("---|", strings.Count(head, " | ")+1))
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", row)
	}
	return b.String()
}

// Count is a number of things: "1 round", "2 rounds".
func Count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}
