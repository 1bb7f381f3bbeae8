package build

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// narrowed returns the places in a package where a wider number becomes an int of 32
// bits, unless its expression or a comment that begins with "fits:" says why it fits.
func narrowed(files *token.FileSet, syntax []*ast.File, info *types.Info) (places []string) {
	for _, file := range syntax {
		said := map[int]bool{}
		for _, group := range file.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "// fits: ") {
					said[files.Position(c.Pos()).Line] = true
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 || !info.Types[call.Fun].IsType() || !isInt(info.Types[call.Fun].Type) {
				return true
			}
			at := files.Position(call.Pos())
			if isWider(info.Types[call.Args[0]].Type) && !fits(call.Args[0], info) && !said[at.Line] {
				places = append(places, fmt.Sprintf("%s:%d: %s", filepath.Base(at.Filename), at.Line, types.ExprString(call)))
			}
			return true
		})
	}
	return places
}

func isInt(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Kind() == types.Int
}

func isWider(t types.Type) bool {
	wider := []types.BasicKind{types.Int64, types.Uint64, types.Uint32, types.Uint, types.Uintptr, types.Float64}
	b, ok := t.Underlying().(*types.Basic)
	return ok && slices.Contains(wider, b.Kind())
}

// fits reports whether an expression is bounded by what an int of 32 bits holds: a
// constant or an int, the least of some, a remainder, masked bits.
func fits(e ast.Expr, info *types.Info) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return fits(e.X, info)
	case *ast.CallExpr:
		switch {
		case info.Types[e.Fun].IsType():
			return isInt(info.Types[e.Args[0]].Type) || fits(e.Args[0], info)
		case types.ExprString(e.Fun) == "min":
			return slices.ContainsFunc(e.Args, func(arg ast.Expr) bool { return fits(arg, info) })
		}
	case *ast.BinaryExpr:
		if e.Op == token.REM {
			return fits(e.Y, info)
		}
		return e.Op == token.AND && (fits(e.X, info) || fits(e.Y, info))
	}
	v := info.Types[e].Value
	return v != nil && constant.Compare(v, token.LSS, constant.MakeInt64(1<<31))
}

// An int has 32 bits in the filter, as TinyGo compiles it, and 64 in its native tests.
func TestNumbersFitTheFiltersInt(t *testing.T) {
	// Each comes after those that it imports: name, folder, compiled exports, files.
	packages := list(t, true, "..", "{{.ImportPath}}\t{{.Dir}}\t{{.Export}}{{range .GoFiles}}\t{{.}}{{end}}", "-export",
		"./filter")
	exports := map[string]string{}
	for _, p := range packages {
		exports[p[0]] = p[2]
	}
	files := token.NewFileSet()
	config := types.Config{Importer: importer.ForCompiler(files, "gc",
		func(name string) (io.ReadCloser, error) { return os.Open(exports[name]) })}
	for _, p := range packages {
		if !within(p[0], "filter") && !within(p[0], "shared") {
			continue
		}
		var syntax []*ast.File
		for _, name := range p[3:] {
			file, err := parser.ParseFile(files, filepath.Join(p[1], name), nil,
				parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			syntax = append(syntax, file)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
		_, err := config.Check(p[0], files, syntax, info)
		require.NoError(t, err)
		for _, place := range narrowed(files, syntax, info) {
			t.Errorf("%s/%s: an int has 32 bits in the filter: bound the number, or say behind it, // fits: why",
				strings.TrimPrefix(p[0], module+"/"), place)
		}
	}
}
