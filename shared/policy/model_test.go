package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every table is in the model, and everything in the model says how it is
// written.
func TestModelIsComplete(t *testing.T) {
	objects := map[string]bool{}
	for _, o := range Model() {
		require.False(t, objects[o.Name], o.Name)
		objects[o.Name] = true
	}
	var check func(at string, d *TypeDoc)
	check = func(at string, d *TypeDoc) {
		switch d.Kind {
		case TypeUnknown:
			require.Fail(t, "no words", "%s: say in written.go in which forms it may be written", at)
		case TypeObject:
			require.True(t, objects[d.Object], "%s is an object %q that Model lacks; or say in written.go what it looks like", at, d.Object)
		case TypeText, TypeDuration:
			_, err := regexp.Compile(d.Pattern)
			require.NoError(t, err, at)
		case TypeWord:
			require.NotEmpty(t, d.Words, at)
		case TypeList, TypeHeaders:
			check(at+"[]", d.Item)
		case TypeChoice:
			for i := range d.Forms {
				check(at, &d.Forms[i])
			}
		default: // says all by itself
		}
	}
	for _, o := range Model() {
		for i := range o.Fields {
			check(o.Name+"."+o.Fields[i].Name, &o.Fields[i].Type)
		}
	}
	in := map[string]bool{} // tables that Model names
	declared := map[string]bool{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if strings.HasSuffix(n.Names[0].Name, "Fields") {
					declared[n.Names[0].Name] = true
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "objectDoc" {
					in[n.Args[1].(*ast.Ident).Name] = true
				}
			}
			return true
		})
	}
	require.NotEmpty(t, declared)
	for name := range declared {
		require.True(t, in[name], "%s is not in Model", name)
	}
}

// What written.go says of fields by name is about fields that there are.
func TestWrittenIsOfFields(t *testing.T) {
	fields := map[string]bool{}
	for _, o := range Model() {
		for _, f := range o.Fields {
			fields[o.Name+"."+f.Name] = true
		}
	}
	for at := range writtenText() {
		require.True(t, fields[at], at)
	}
	for at := range writtenItems() {
		require.True(t, fields[at], at)
	}
	require.Equal(t, []string{"client_ip", "host", "method", "path", "route"}, bareKeyParts())
}
