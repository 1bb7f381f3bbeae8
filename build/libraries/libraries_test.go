package libraries

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/sample"
)

func docs(name string) string { return filepath.Join(buildtest.Root(), "docs", name) }

// The table of the document is the one of the figures that were measured.
func TestTheDocumentSaysWhatWasMeasured(t *testing.T) {
	r, err := Read(docs("keyed-performance.json"))
	require.NoError(t, err)
	for _, row := range r.Rows {
		for _, rounds := range [][]float64{row.Many, row.ManyShared, row.One} {
			require.Len(t, rounds, r.Rounds, row.Limiter)
		}
	}
	page, err := os.ReadFile(docs("keyed-performance.md"))
	require.NoError(t, err)
	updated, err := r.Fill(string(page))
	require.NoError(t, err)
	require.Equal(t, string(page), updated, "make bench-keyed writes the table")
}

// A key takes no more than 40 bytes, and a decision allocates nothing. Whether it
// takes less time than one of go-limiter is up to the machine: the page says what
// it was on the one that measured.
func TestTheLibraryKeepsItsTargets(t *testing.T) {
	r, err := Read(docs("keyed-performance.json"))
	require.NoError(t, err)
	ours, base := r.Rows[0], r.Rows[1]
	require.Contains(t, ours.Limiter, "shared/keyed")
	require.Contains(t, base.Limiter, baseline)
	table, err := r.Table()
	require.NoError(t, err)
	faster := sample.MedianRatio(ours.Many, base.Many) < 1
	require.Equal(t, faster, strings.Contains(table, "of it, met; at most"))
	require.Equal(t, !faster, strings.Contains(table, "of it, **missed**; at most"))
	require.LessOrEqual(t, ours.Bytes, mostBytes)
	require.Zero(t, ours.Allocs)
	require.Equal(t, 100_000, r.Keys)
}

// The program that measures is a module of its own, which nothing else compiles.
func TestMeasureCompiles(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "vet", ".")
	cmd.Dir = filepath.Join(buildtest.Root(), "build", "libraries", "measure")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\nIts module imports other limiters, which go downloads once: where there is no network, "+
		"`cd build/libraries/measure && go mod download` beforehand.", out)
}

func TestATableNeedsABaseline(t *testing.T) {
	_, err := Results{Rows: []Result{{Limiter: "x"}}}.Table()
	require.ErrorContains(t, err, "go-limiter")
}
