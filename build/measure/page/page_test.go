package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFill(t *testing.T) {
	const text = "top\n<!-- measured: a -->\nold\n<!-- end -->\nbetween\n<!-- measured: b -->\n<!-- end -->\nend\n"
	sections := map[string]string{"a": "one\n", "b": "two\n"}
	filled, err := fill(text, "", sections)
	require.NoError(t, err)
	require.Equal(t, "top\n<!-- measured: a -->\none\n<!-- end -->\nbetween\n<!-- measured: b -->\ntwo\n<!-- end -->\nend\n", filled)
	again, err := fill(filled, "", sections)
	require.NoError(t, err)
	require.Equal(t, filled, again)

	for bad, want := range map[string]string{
		"":                       "there is no section a",
		"<!-- measured: a -->\n": "there is no section a",
		"<!-- measured: a -->\n<!-- measured: b -->\n<!-- end -->\n":                  "section a has no text, no end or a twin",
		"<!-- measured: a -->\n<!-- end -->\n<!-- measured: gone -->\n<!-- end -->\n": "section gone has no text, no end or a twin",
		"<!-- measured: a -->\n<!-- end -->\n<!-- measured: a -->\n<!-- end -->\n":    "section a has no text, no end or a twin",
	} {
		_, err := fill(bad, "", map[string]string{"a": ""})
		require.ErrorContains(t, err, want, bad)
	}
}

func TestWrite(t *testing.T) {
	docs := t.TempDir()
	f := Figures{Page: "p", Raw: []int{1, 2}, Sections: map[string]string{"a": Table("x | y", "1 | 2")}}
	require.Error(t, f.Write(docs), "there is no page")
	require.NoError(t, os.WriteFile(filepath.Join(docs, "p.md"), []byte("<!-- measured: a -->\n<!-- end -->\n"), 0o600))
	stale, err := f.Stale(docs)
	require.NoError(t, err)
	require.Equal(t, []string{"p.json", "p.md"}, stale)
	require.NoError(t, f.Write(docs))
	stale, err = f.Stale(docs)
	require.NoError(t, err)
	require.Empty(t, stale)
	text, err := os.ReadFile(filepath.Join(docs, "p.md"))
	require.NoError(t, err)
	require.Equal(t, "<!-- measured: a -->\n| x | y |\n|---|---|\n| 1 | 2 |\n<!-- end -->\n", string(text))
	var raw []int
	require.NoError(t, Read(docs, "p", "", &raw))
	require.Equal(t, []int{1, 2}, raw)
}

// Several measurements share a page: each has sections and figures of its own.
func TestParts(t *testing.T) {
	docs := t.TempDir()
	text := "<!-- measured: cost-bars -->\nold\n<!-- end -->\n<!-- measured: faults -->\nold\n<!-- end -->\n"
	require.NoError(t, os.WriteFile(filepath.Join(docs, "p.md"), []byte(text), 0o600))
	f := Figures{Page: "p", Part: "cost", Raw: 7, Sections: map[string]string{"cost-bars": "new\n"}}
	require.NoError(t, f.Write(docs))
	page, err := os.ReadFile(filepath.Join(docs, "p.md"))
	require.NoError(t, err)
	require.Equal(t, strings.Replace(text, "old", "new", 1), string(page))
	var raw int
	require.NoError(t, Read(docs, "p", "cost", &raw))
	require.Equal(t, 7, raw)
}
