package build

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// mostLines is the length of a Go file above which it has a natural seam.
const mostLines = 400

// forbiddenText is what no file may say; the patterns are written so that they
// do not match themselves.
var forbiddenText = []struct {
	pattern *regexp.Regexp
	reason  string
}{
	{regexp.MustCompile(`/wor[k]/|/tm[p]/[a-z]+/|/roo[t]/|/hom[e]/[a-z]`), "a path of somebody's machine"},
	{regexp.MustCompile(`pypi\.or[g]|proxy\.golang\.or[g]|registry\.npmj[s]|crates\.i[o]|deb\.debia[n]`), "a package registry's host: clients know their own"},
	{regexp.MustCompile(`\bt\.Ski[p](f|Now)?\(`), "a skipped test: it fails, and says how to get what it lacks"},
	{regexp.MustCompile(`\b(TOD[O]|FIXM[E]|XX[X])\b`), "a note to self: do it, or say in the docs that it is missing"},
}

// fileProblems checks every file of a source tree by itself.
func fileProblems(tree fs.FS) ([]string, error) {
	var problems []string
	report := func(name string, line int, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s:%d: %s", name, line, fmt.Sprintf(format, args...)))
	}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "build/out"):
			return fs.SkipDir
		case !entry.Type().IsRegular() || path.Base(name) == "go.sum" || name == ".git": // a file in a work tree of git's
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil || bytes.IndexByte(text, 0) >= 0 { // binary
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, forbidden := range forbiddenText {
				if found := forbidden.pattern.FindString(line); found != "" {
					report(name, i+1, "%q is %s", found, forbidden.reason)
				}
			}
		}
		if path.Ext(name) == ".go" {
			goProblems(name, text, report)
		}
		return nil
	})
	return problems, err
}

func goProblems(name string, text []byte, report func(name string, line int, format string, args ...any)) {
	if lines := bytes.Count(text, []byte("\n")); lines > mostLines {
		report(name, lines, "over %d lines: split it where it has a seam", mostLines)
	}
	if formatted, err := format.Source(text); err != nil {
		report(name, 1, "%v", err)
		return
	} else if !bytes.Equal(formatted, text) {
		report(name, 1, "not formatted: gofmt -w %s", name)
	}
	if strings.HasSuffix(name, "_test.go") || !strings.HasPrefix(name, "filter/") && !strings.HasPrefix(name, "shared/") {
		return
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		report(name, 1, "%v", err)
		return
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.GoStmt:
			report(name, files.Position(node.Pos()).Line, "a goroutine: in the filter nobody gives it time to run")
		case *ast.SelectorExpr:
			if from, ok := node.X.(*ast.Ident); ok && from.Name == "time" && waits[node.Sel.Name] {
				report(name, files.Position(node.Pos()).Line, "time.%s: the filter cannot wait, for nobody would wake it", node.Sel.Name)
			}
		}
		return true
	})
}

// waits are the functions of package time that wait.
var waits = map[string]bool{
	"Sleep": true, "After": true, "AfterFunc": true, "NewTimer": true, "NewTicker": true, "Tick": true,
}

func TestFiles(t *testing.T) {
	problems, err := fileProblems(os.DirFS(".."))
	require.NoError(t, err)
	require.Empty(t, problems, strings.Join(problems, "\n"))
}

// TestFilesBite breaks each law once.
func TestFilesBite(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"machine path":  {"README.md", "one\nsee /wor" + "k/main", `README.md:2: "/wor` + `k/" is a path`},
		"registry host": {"Makefile", "https://pypi.or" + "g", "Makefile:1: "},
		"skipped test":  {"a_test.go", "package a\n\n// t.Ski" + "p()\n", "a_test.go:3: "},
		"note to self":  {"a.go", "package a // TOD" + "O\n", "a.go:1: "},
		"length":        {"a.go", "package a\n" + strings.Repeat("\n// x", mostLines) + "\n", "over 400 lines"},
		"format":        {"a.go", "package  a\n", "not formatted"},
		"syntax":        {"a.go", "package\n", "a.go:1: "},
		"goroutine":     {"filter/a.go", "package a\n\nfunc f() {\n\tgo f()\n}\n", "filter/a.go:4: a goroutine"},
		"sleep":         {"shared/a.go", "package a\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n", "shared/a.go:5: time.Sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			problems, err := fileProblems(fstest.MapFS{tc.file: {Data: []byte(tc.text)}})
			require.NoError(t, err)
			require.Len(t, problems, 1)
			require.Contains(t, problems[0], tc.want)
		})
	}
	problems, err := fileProblems(fstest.MapFS{
		"build/out/x.go":   {Data: []byte("/wor" + "k/")},
		"image.bin":        {Data: []byte("\x00/wor" + "k/")},
		"envoy/a.go":       {Data: []byte("package a\n\nfunc f() {\n\tgo f()\n}\n")},
		"shared/a_test.go": {Data: []byte("package a\n\nfunc f() {\n\tgo f()\n}\n")},
	})
	require.NoError(t, err)
	require.Empty(t, problems)
}
