package docs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// TestPerformance computes the page's tables and picture from the raw figures
// once more, and holds each verdict against the numbers beside it.
func TestPerformance(t *testing.T) {
	read := func(elements ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{buildtest.Root(), "docs"}, elements...)...))
		require.NoError(t, err)
		return string(text)
	}
	run, err := performance.Read([]byte(read("performance.json")))
	require.NoError(t, err)
	page := read("performance.md")
	filled, err := run.Fill(page)
	require.NoError(t, err)
	require.Equal(t, strings.Split(filled, "\n"), strings.Split(page, "\n"))
	require.Equal(t, string(run.Picture()), read("img", "performance.svg"))
	require.NotEmpty(t, run.Cases)

	rows := 0
	for _, target := range run.Targets() {
		for line := range strings.Lines(page) {
			if !strings.HasPrefix(line, "| "+target.What+" | ") {
				continue
			}
			rows++
			verdict := "| **missed** |\n"
			switch {
			case !target.Known:
				verdict = "| not measured |\n"
			case target.Measured <= target.Bound:
				verdict = "| met |\n"
			}
			require.True(t, strings.HasSuffix(line, verdict), line)
		}
	}
	require.Len(t, run.Targets(), rows)

	// A figure that is not the page's does not go unnoticed.
	run.Cases[1].Visits[0].Ratio *= 3
	refilled, err := run.Fill(page)
	require.NoError(t, err)
	require.NotEqual(t, page, refilled)
}
