package report_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/report"
)

func TestFill(t *testing.T) {
	const page = "top\n<!-- x: a -->\nold\n<!-- end -->\nbetween\n<!-- x: b -->\n<!-- end -->\n<!-- y: a -->\nother\n<!-- end -->\nend\n"
	sections := map[string]string{"a": "one\n", "b": "two\n"}
	filled, err := report.Fill(page, "x", sections)
	require.NoError(t, err)
	require.Equal(t, "top\n<!-- x: a -->\none\n<!-- end -->\nbetween\n<!-- x: b -->\ntwo\n<!-- end -->\n<!-- y: a -->\nother\n<!-- end -->\nend\n", filled)
	again, err := report.Fill(filled, "x", sections)
	require.NoError(t, err)
	require.Equal(t, filled, again)

	for page, want := range map[string]string{
		"":                "it has no section a: <!-- x: a --> … <!-- end -->",
		"<!-- x: a -->\n": "it has no section a",
		"<!-- end -->":    "it has no section a",
		"<!-- x: a -->\n<!-- y: b -->\n<!-- end -->\n":                  "it has no section a",
		"<!-- x: a -->\n<!-- end -->\n<!-- x: gone -->\n<!-- end -->\n": "nothing is to go into its section gone",
		"<!-- x: a -->\n<!-- end -->\n<!-- x: a -->\n<!-- end -->\n":    "it has section a twice",
	} {
		_, err := report.Fill(page, "x", map[string]string{"a": ""})
		require.ErrorContains(t, err, want, page)
	}
	_, err = report.Fill(page, "x", map[string]string{"a": "<!-- end -->", "b": ""})
	require.ErrorContains(t, err, "the text of section a has a mark in it")
}

func TestUpdate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	add := func(page string) (string, error) { return page + "!", nil }
	require.ErrorContains(t, report.Update(file, add), "update page")
	require.NoError(t, report.Write(file, []byte("a")))
	require.NoError(t, report.Update(file, add))
	refused := errors.New("no")
	require.ErrorIs(t, report.Update(file, func(string) (string, error) { return "b", refused }), refused)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "a!", string(text))
}

func TestCount(t *testing.T) {
	require.Equal(t, "0 rounds", report.Count(0, "round"))
	require.Equal(t, "1 round", report.Count(1, "round"))
	require.Equal(t, "2 rounds", report.Count(2, "round"))
}
