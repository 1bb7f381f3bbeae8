package build

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStyle holds the laws of style that no linter knows. The others are in .golangci.yml.
func TestStyle(t *testing.T) {
	require.Equal(t, []string{
		"x.go:3: a value is assigned in the header of an if: assign it on a line of its own, or declare it with :=",
		"x.go:4: three or more values are assigned at once: give each a line of its own",
	}, styleFaults("x.go", `package x; var a, b, c int; func f() int { return a
		}; func g() {
			if a = f(); a > 0 { b = 1 }
			a, b, c = 1, 2, 3
			if d := f(); d > 0 { a, b = b, a }
		}`))
	tree := os.DirFS("..")
	var faults []string
	require.NoError(t, fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (name == "build/out" || name == ".git") {
			return fs.SkipDir
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		faults = append(faults, styleFaults(name, string(text))...)
		return err
	}))
	require.Empty(t, faults, "\n%s", strings.Join(faults, "\n"))
}

// styleFaults are the places in a file that break a law, each with what to do.
func styleFaults(name, text string) (faults []string) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	fault := func(n ast.Node, what string) {
		faults = append(faults, fmt.Sprintf("%s:%d: %s", name, files.Position(n.Pos()).Line, what))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			init, ok := n.Init.(*ast.AssignStmt)
			if ok && init.Tok != token.DEFINE {
				fault(n, "a value is assigned in the header of an if: assign it on a line of its own, or declare it with :=")
			}
		case *ast.AssignStmt:
			if len(n.Lhs) > 2 && len(n.Rhs) > 1 {
				fault(n, "three or more values are assigned at once: give each a line of its own")
			}
		}
		return true
	})
	return faults
}
