package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	cdx "github.com/CycloneDX/cyclonedx-go"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// allowed are the licenses that a linked module may have: none asks for more than its
// notice and its text.
var allowed = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "0BSD", "Unlicense", "CC0-1.0"}

// licenseFile is the name of a file with terms for the code. LICENSE.docs is for the
// documentation, which no binary has.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|unlicense)([._-].*)?$`)

// knownLicenses are all texts of licenses, which take half a second to read.
var knownLicenses = sync.OnceValues(assets.DefaultClassifier)

// readLicenses reads the licenses of all modules.
func (r *release) readLicenses() error {
	known, err := knownLicenses()
	if err != nil {
		return err
	}
	for i := range r.modules {
		if err := r.modules[i].readLicense(known); err != nil {
			return fmt.Errorf("%s: %w", r.modules[i].Path, err)
		}
	}
	return nil
}

// readLicense reads a module's licenses. Each file that is one must be known and allowed.
func (m *module) readLicense(known *classifier.Classifier) error {
	files, err := os.ReadDir(m.Dir)
	if err != nil {
		return err
	}
	var ids, texts []string
	for _, entry := range files {
		file := entry.Name()
		if entry.IsDir() || !licenseFile.MatchString(file) || slices.Contains([]string{".go", ".docs"}, filepath.Ext(file)) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.Dir, file))
		if err != nil {
			return err
		}
		texts = append(texts, strings.TrimRight(string(text), "\n"))
		isKnown := strings.HasPrefix(strings.ToLower(file), "notice")
		for _, match := range known.Match(known.Normalize(text)).Matches {
			if match.MatchType != "License" {
				continue
			}
			if !slices.Contains(allowed, match.Name) {
				return fmt.Errorf("%s is %s, which is not among the allowed licenses", file, match.Name)
			}
			ids, isKnown = append(ids, match.Name), true
		}
		if !isKnown {
			return fmt.Errorf("%s is no license that is known", file)
		}
	}
	if len(ids) == 0 {
		return fmt.Errorf("it has no license in %s", m.Dir)
	}
	slices.Sort(ids)
	m.license, m.terms = strings.Join(slices.Compact(ids), " AND "), strings.Join(texts, "\n\n")
	return nil
}

// writeNotices writes the licenses of the product and of everything that it links.
func (r *release) writeNotices() error {
	own, err := os.ReadFile(filepath.Join(r.tree, "LICENSE"))
	if err != nil {
		return err
	}
	text := bytes.NewBufferString("sluice\n\n" + string(own))
	for _, m := range r.modules {
		fmt.Fprintf(text, "\n%s\n%s %s (%s)\n\n%s\n", strings.Repeat("-", 78), m.Path, m.Version, m.license, m.terms)
	}
	r.notices = text.Bytes()
	return r.WriteFile(noticesFile, r.notices, 0o600)
}

// writeSBOM writes what is linked, and what the filter was compiled by, as CycloneDX. It has
// no serial number and no time: it follows from the source.
func (r *release) writeSBOM() error {
	var tools, components []cdx.Component
	for _, c := range r.compilers {
		tools = append(tools, cdx.Component{Type: cdx.ComponentTypeApplication, Name: c.Name, Version: c.Version})
	}
	links := cdx.Dependency{Ref: "sluice", Dependencies: &[]string{}}
	for _, m := range r.modules {
		purl := "pkg:golang/" + m.Path + "@" + m.Version
		component := cdx.Component{
			BOMRef: purl, PackageURL: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version,
			Scope:    cdx.ScopeRequired,
			Licenses: &cdx.Licenses{{Expression: m.license}},
		}
		if m.Sum != "" {
			component.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
		}
		components = append(components, component)
		*links.Dependencies = append(*links.Dependencies, purl)
	}
	bom := cdx.NewBOM()
	bom.Components, bom.Dependencies = &components, &[]cdx.Dependency{links}
	bom.Metadata = &cdx.Metadata{Tools: &cdx.ToolsChoice{Components: &tools}, Component: &cdx.Component{
		BOMRef: "sluice", Type: cdx.ComponentTypeApplication, Name: "sluice", Version: r.version,
		Properties: &[]cdx.Property{{Name: "commit", Value: r.commit}},
	}}
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return r.WriteFile(sbomFile, text.Bytes(), 0o600)
}
