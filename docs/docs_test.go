// Package docs_test holds what the documentation says against the product:
// policies are read, commands exist, outputs and figures come out as printed.
//
// Its invariant: it knows no text of the documents, so that they can be
// rewritten at will as long as they stay true.
package docs_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/charttest"
)

// doc is one document, by its path from the root of the repository.
type doc struct{ path, text string }

// documents returns the README files and docs/*.md.
func documents(t *testing.T) []doc {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(buildtest.Root(), "docs", "*.md"))
	require.NoError(t, err)
	var docs []doc
	files = append(files, filepath.Join(buildtest.Root(), "README.md"), filepath.Join(charttest.Dir(), "README.md"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		path, err := filepath.Rel(buildtest.Root(), file)
		require.NoError(t, err)
		docs = append(docs, doc{path, string(text)})
	}
	return docs
}

func document(t *testing.T, path string) doc {
	t.Helper()
	for _, d := range documents(t) {
		if d.path == path {
			return d
		}
	}
	t.Fatalf("there is no %s", path)
	return doc{}
}

// fence is a fenced block: ```LANG FILE.
type fence struct {
	lang, file, text string
	at               string // document and line
}

var fenceText = regexp.MustCompile("(?ms)^```(\\w*) ?(\\S*)\n(.*?)^```$")

func (d doc) fences() []fence {
	var list []fence
	for _, m := range fenceText.FindAllStringSubmatchIndex(d.text, -1) {
		line := 1 + strings.Count(d.text[:m[0]], "\n")
		list = append(list, fence{d.text[m[2]:m[3]], d.text[m[4]:m[5]], d.text[m[6]:m[7]], d.path + ":" + strconv.Itoa(line)})
	}
	return list
}

// policyOf makes a policy of a block that is one, or a list of rules.
func (f fence) policyOf() (text string, ok bool) {
	switch {
	case f.lang != "yaml" || strings.HasPrefix(f.file, "bad") || strings.Contains(f.text, "\npolicy: "): // tests
		return "", false
	case strings.HasPrefix(f.text, "- "):
		return "version: 1\nrules:\n" + f.text, true
	}
	return f.text, strings.HasPrefix(f.text, "version:")
}

// sluice is the command line of this tree and the filter it is to run.
type sluice struct {
	binary, filter string
	helps          map[string]string
}

func build(t *testing.T) *sluice {
	t.Helper()
	binary, err := built()
	require.NoError(t, err)
	return &sluice{binary: binary, helps: map[string]string{}}
}

var (
	builtIn string // a directory of these tests
	built   = sync.OnceValues(func() (string, error) {
		binary := filepath.Join(builtIn, "sluice")
		cmd := exec.Command("go", "build", "-ldflags=-w", "-o", binary, "./controlplane/cmd/sluice")
		cmd.Dir = buildtest.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w\n%s", err, out)
		}
		return binary, nil
	})
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "docs-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		builtIn = dir
		return m.Run()
	}())
}

// run returns what the command prints, errors included.
func (s *sluice) run(dir, stdin string, args ...string) (output string, err error) {
	cmd := exec.Command(s.binary, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// help is the help of a command; "" where there is no such command.
func (s *sluice) help(words ...string) string {
	name := strings.Join(append([]string{"sluice"}, words...), " ")
	if _, known := s.helps[name]; !known {
		text, err := s.run("", "", slices.Concat(words, []string{"--help"})...)
		if err != nil || !regexp.MustCompile(`(?m)^  `+name+`( \[| -|$| \(| [A-Z])`).MatchString(usage(text)) {
			text = ""
		}
		s.helps[name] = text
	}
	return s.helps[name]
}

func usage(help string) string {
	_, after, _ := strings.Cut(help, "\nUsage:\n")
	text, _, _ := strings.Cut(after, "\n\n")
	return text
}

// badPolicies validates every policy of the documents.
func (s *sluice) badPolicies(docs []doc) (problems []string, checked int) {
	for _, d := range docs {
		for _, f := range d.fences() {
			text, ok := f.policyOf()
			if !ok {
				continue
			}
			checked++
			if out, err := s.run("", text, "validate", "-f", "-"); err != nil {
				problems = append(problems, f.at+": "+out)
			}
		}
	}
	return problems, checked
}

var (
	continued   = regexp.MustCompile(`\\\n\s*`)
	commandText = regexp.MustCompile("(?m)(?:^\\s*(?:\\$ )?|[|;&(] ?|`)sluice ([^`\n|<>;&]+)")
	commandWord = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flagText    = regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[a-z][a-z0-9-]*)`)
)

// badCommands checks the command lines in code, and their flags, against help.
func (s *sluice) badCommands(docs []doc) (problems []string, checked int) {
	for _, d := range docs {
		for _, line := range code(continued.ReplaceAllString(d.text, " ")) {
			for _, m := range commandText.FindAllStringSubmatch(line, -1) {
				checked++
				text, _, _ := strings.Cut(strings.ReplaceAll(m[1], " -- ", " # "), " #") // another program's
				if problem := s.badCommand(strings.Fields(text)); problem != "" {
					problems = append(problems, fmt.Sprintf("%s: sluice %s: %s", d.path, text, problem))
				}
			}
		}
	}
	return problems, checked
}

func (s *sluice) badCommand(words []string) string {
	n := 0
	for n < len(words) && commandWord.MatchString(words[n]) && s.help(words[:n+1]...) != "" {
		n++
	}
	help, flags, _ := strings.Cut(s.help(words[:n]...), "\nFlags:\n")
	if n == 0 && !strings.HasPrefix(words[0], "-") || n < len(words) && commandWord.MatchString(words[n]) &&
		strings.Contains(help, "\nAvailable Commands:\n") {
		return "there is no such command"
	}
	known := map[string]bool{}
	for _, m := range flagText.FindAllStringSubmatch(flags, -1) {
		known[m[1]], known[m[2]] = true, true
	}
	for _, word := range words[n:] {
		flag, _, _ := strings.Cut(strings.Trim(word, "[]()"), "=")
		if strings.HasPrefix(flag, "-") && flag != "-" && !known[flag] {
			return "there is no flag " + flag
		}
	}
	return ""
}

var spanText = regexp.MustCompile("`[^`\n]+`")

// code lists the lines of a document's blocks and its spans of code.
func code(text string) []string {
	var lines []string
	fenced := false
	for _, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced, strings.HasPrefix(line, "    "):
			lines = append(lines, line)
		default:
			lines = append(lines, spanText.FindAllString(line, -1)...)
		}
	}
	return lines
}

// badTranscripts runs every "$ sluice …" of a ```console block among the files
// of its document and compares what it prints, byte for byte but where the page has a ….
func (s *sluice) badTranscripts(t *testing.T, docs []doc) (problems []string, checked int) {
	for _, d := range docs {
		dir := t.TempDir()
		for _, f := range d.fences() {
			if f.file != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, f.file), []byte(f.text), 0o600))
			}
		}
		for _, f := range d.fences() {
			if f.lang != "console" {
				continue
			}
			for _, part := range strings.Split("\n"+f.text, "\n$ sluice ")[1:] {
				checked++
				command, want, _ := strings.Cut(part, "\n")
				command, to, redirected := strings.Cut(command, " > ")
				args := strings.Fields(command)
				if slices.Contains([]string{"simulate", "explain", "replay", "suggest", "test"}, args[0]) {
					args = append(args, "--wasm", s.filter)
				}
				got, _ := s.run(dir, "", args...)
				if redirected {
					require.NoError(t, os.WriteFile(filepath.Join(dir, to), []byte(got), 0o600))
					got = ""
				}
				if !regexp.MustCompile("^" + pattern(strings.TrimSuffix(want, "\n")) + "\n?$").MatchString(got) {
					problems = append(problems, fmt.Sprintf("%s: sluice %s prints\n%s", f.at, command, got))
				}
			}
		}
	}
	return problems, checked
}

// badExcerpts looks for each Go block with a file's name in this file of examples/gotest, which a
// test of policytest runs.
func badExcerpts(docs []doc) (problems []string, checked int) {
	for _, d := range docs {
		for _, f := range d.fences() {
			if f.lang != "go" || f.file == "" {
				continue
			}
			checked++
			text, err := os.ReadFile(filepath.Join(buildtest.Root(), "examples", "gotest", f.file))
			if err != nil || !strings.Contains(string(text), f.text) {
				problems = append(problems, fmt.Sprintf("%s: not in %s: %v", f.at, f.file, err))
			}
		}
	}
	return problems, checked
}

// pattern is an expression for a text of a page: a … stands for what differs from run to run, in
// one line.
func pattern(text string) string {
	parts := strings.Split(text, "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return strings.Join(parts, `[^\n]*`)
}

var headingText = regexp.MustCompile(`(?m)^##+ (.+)$`)

func TestPoliciesAndCommands(t *testing.T) {
	s, docs := build(t), documents(t)
	s.filter = buildtest.Filter(t)
	for name, check := range map[string]func([]doc) ([]string, int){
		"policies": s.badPolicies, "commands": s.badCommands, "links": badLinks,
		"excerpts":    badExcerpts,
		"transcripts": func(docs []doc) ([]string, int) { return s.badTranscripts(t, docs) },
		"tests":       func(docs []doc) ([]string, int) { return badTests(t, docs) },
	} {
		problems, checked := check(docs)
		require.Empty(t, problems, name)
		require.Positive(t, checked, name)
		t.Log(checked, name)
	}
}

var testText = regexp.MustCompile(`\b((?:Test|Fuzz)[A-Z]\w+)`)

// badTests checks that every test that a page names as the source of a figure exists.
func badTests(t *testing.T, docs []doc) (problems []string, checked int) {
	found := exec.CommandContext(t.Context(), "grep", "-rhoE", "--include=*_test.go", "--exclude-dir=out",
		`^func (Test|Fuzz)\w+`)
	found.Dir = buildtest.Root()
	out, err := found.Output()
	require.NoError(t, err)
	for _, d := range docs {
		for _, m := range testText.FindAllStringSubmatch(d.text, -1) {
			checked++
			if !strings.Contains(string(out), "func "+m[1]+"\n") {
				problems = append(problems, d.path+": there is no "+m[1])
			}
		}
	}
	return problems, checked
}

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
				text, err = os.ReadFile(filepath.Join(buildtest.Root(), filepath.Dir(d.path), m[1]))
				if err != nil {
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
