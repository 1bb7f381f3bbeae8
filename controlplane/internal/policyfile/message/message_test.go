package message

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Each code of shared/policy has a sentence, apart from the three for which Of makes one.
func TestEachCodeHasASentence(t *testing.T) {
	codes := codesOf(t, "../../../../shared/policy/problem.go")
	require.Greater(t, len(codes), 50)
	for _, code := range codes {
		switch code {
		case policy.WrongValue, policy.UnknownField, policy.BadExpression:
		default:
			require.NotEmpty(t, sentences[code], "no sentence for %s", code)
		}
	}
}

// codesOf lists the constants of type Code in a file.
func codesOf(t *testing.T, file string) (codes []policy.Code) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typed, ok := spec.Type.(*ast.Ident); !ok || typed.Name != "Code" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		codes = append(codes, policy.Code(text))
		return true
	})
	return codes
}

func TestNearest(t *testing.T) {
	words := []string{"name", "limits", "missing_key", "on_error", "key"}
	for text, want := range map[string]string{
		"naem": "name", "Limits": "limits", "limit": "limits", "missingkey": "missing_key", "missing-key": "missing_key",
		"onerror": "on_error", "keys": "key", "k": "", "kye": "key", "flavor": "", "": "", strings.Repeat("name", 20): "",
	} {
		require.Equal(t, want, Nearest(text, words), text)
	}
}
