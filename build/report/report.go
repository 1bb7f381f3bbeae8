// Package report puts what was measured into the pages of the documentation.
//
// Its invariant: of a page it changes nothing but the sections that a tool fills,
// from <!-- TOOL: NAME --> to <!-- end -->, and either all of them or none. It
// must not import a package of this module: whatever measures stands on it.
package report

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

const end = "<!-- end -->"

// Fill returns the page with the sections of a tool, by their names. A page
// without a place for one is an error, and so is a place that no section is for.
func Fill(page, tool string, sections map[string]string) (string, error) {
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		open := "<!-- " + tool + ": " + name + " -->\n"
		before, rest, opened := strings.Cut(page, open)
		old, after, closed := strings.Cut(rest, end)
		switch {
		case strings.Contains(sections[name], "<!--"):
			return "", fmt.Errorf("fill page: the text of section %s has a mark in it", name)
		case strings.Contains(after, open):
			return "", fmt.Errorf("fill page: it has section %s twice", name)
		case !opened, !closed, strings.Contains(old, "<!--"): // the end of another
			return "", fmt.Errorf("fill page: it has no section %s: %s", name, strings.TrimSpace(open)+" … "+end)
		}
		page = before + open + sections[name] + end + after
	}
	opens := regexp.MustCompile(`<!-- ` + regexp.QuoteMeta(tool) + `: (.+?) -->`)
	for _, m := range opens.FindAllStringSubmatch(page, -1) {
		if _, known := sections[m[1]]; !known {
			return "", fmt.Errorf("fill page: nothing is to go into its section %s", m[1])
		}
	}
	return page, nil
}

// Update has the page in a file filled.
func Update(file string, fill func(page string) (string, error)) error {
	before, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("update page: %w", err)
	}
	after, err := fill(string(before))
	if err != nil {
		return fmt.Errorf("update %s: %w", file, err)
	}
	return Write(file, []byte(after))
}

// Write writes a file that is for everybody to read.
func Write(file string, text []byte) error {
	return os.WriteFile(file, text, 0o644) //nolint:gosec // see above
}

// Count is a number of things, in words that fit it: "1 round", "2 rounds".
func Count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}
