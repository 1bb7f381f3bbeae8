package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// allowed are the licenses that a linked module may have: none asks for more than its
// notice and its text.
var allowed = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "0BSD", "Unlicense", "CC0-1.0"}

// licenseFile is the name of a file with terms for the code. LICENSE.docs is for the
// documentation, which no binary has.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|unlicense)([._-].*)?$`)

// license is what a module's files say.
type license struct {
	expression string // in SPDX's form
	text       string
}

// identifyAll reads every module's licenses, in the modules' order.
func identifyAll(modules []module) (list []license, err error) {
	known, err := assets.DefaultClassifier()
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		found, err := identify(known, m.Dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}
		list = append(list, found)
	}
	return list, nil
}

// identify reads a module's licenses. Each file that is one must be known and allowed.
func identify(known *classifier.Classifier, dir string) (found license, err error) {
	files, err := licenseFiles(dir)
	if err != nil {
		return found, err
	}
	var ids, texts []string
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return found, err
		}
		texts = append(texts, strings.TrimRight(string(text), "\n"))
		isKnown := strings.HasPrefix(strings.ToLower(file), "notice")
		for _, match := range known.Match(known.Normalize(text)).Matches {
			if match.MatchType != "License" {
				continue
			}
			if !slices.Contains(allowed, match.Name) {
				return found, fmt.Errorf("%s is %s, which is not among the allowed licenses", file, match.Name)
			}
			ids, isKnown = append(ids, match.Name), true
		}
		if !isKnown {
			return found, fmt.Errorf("%s is no license that is known", file)
		}
	}
	if len(ids) == 0 {
		return found, fmt.Errorf("it has no license in %s", dir)
	}
	slices.Sort(ids)
	return license{strings.Join(slices.Compact(ids), " AND "), strings.Join(texts, "\n\n")}, nil
}

// licenseFiles names the files with a module's terms.
func licenseFiles(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if !entry.IsDir() && licenseFile.MatchString(entry.Name()) && !slices.Contains([]string{".go", ".docs"}, filepath.Ext(entry.Name())) {
			files = append(files, entry.Name())
		}
	}
	return files, err
}

// writeNotices writes the licenses of the product and of everything that it links.
func writeNotices(dir, tree string, modules []module, found []license) error {
	own, err := os.ReadFile(filepath.Join(tree, "LICENSE"))
	if err != nil {
		return err
	}
	text := "sluice\n\n" + string(own)
	for i, m := range modules {
		text += fmt.Sprintf("\n%s\n%s %s (%s)\n\n%s\n", strings.Repeat("-", 78), m.Path, m.Version,
			found[i].expression, found[i].text)
	}
	return publish(filepath.Join(dir, noticesFile), []byte(text))
}

// writeSBOM writes what is linked, and what the filter was compiled by, as CycloneDX. It has no serial number and no time: it
// follows from the source.
func writeSBOM(dir string, o options, from source, modules []module, found []license, compilers []wasm.Compiler) error {
	var tools []cdx.Component
	for _, c := range compilers {
		tools = append(tools, cdx.Component{Type: cdx.ComponentTypeApplication, Name: c.Name, Version: c.Version})
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Tools: &cdx.ToolsChoice{Components: &tools}, Component: &cdx.Component{
		BOMRef: "sluice", Type: cdx.ComponentTypeApplication, Name: "sluice", Version: o.version,
		Properties: &[]cdx.Property{{Name: "commit", Value: from.commit}},
	}}
	var components []cdx.Component
	var refs []string
	for i, m := range modules {
		purl := "pkg:golang/" + m.Path + "@" + m.Version
		component := cdx.Component{
			BOMRef: purl, PackageURL: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, Scope: cdx.ScopeRequired,
			Licenses: &cdx.Licenses{{Expression: found[i].expression}},
		}
		if m.Sum != "" {
			component.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
		}
		components, refs = append(components, component), append(refs, purl)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: "sluice", Dependencies: &refs}}
	file, err := os.Create(filepath.Join(dir, sbomFile))
	if err != nil {
		return err
	}
	defer file.Close()
	return cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}
