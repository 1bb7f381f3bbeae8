package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

var (
	linkText    = regexp.MustCompile(`\]\((?:([^)\s#:]+)(#[^)\s]*)?|(#[^)\s]+))\)`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// badLinks checks that relative links lead to files, and to headings in them.
func badLinks(docs []doc) (problems []string, checked int) {
	for _, d := range docs {
		for _, m := range linkText.FindAllStringSubmatch(d.text, -1) {
			checked++
			text, heading := []byte(d.text), m[2]+m[3]
			if m[1] != "" {
				var err error
				if text, err = os.ReadFile(filepath.Join(buildtest.Root(), filepath.Dir(d.path), m[1])); err != nil {
					problems = append(problems, d.path+": "+err.Error())
					continue
				}
			}
			if heading != "" && !slices.Contains(anchors(string(text)), heading) {
				problems = append(problems, d.path+": there is no heading "+m[0])
			}
		}
	}
	return problems, checked
}

// anchors are the links to a document's headings, as forges make them.
func anchors(text string) (list []string) {
	for _, m := range headingText.FindAllStringSubmatch(text, -1) {
		list = append(list, "#"+strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return list
}
