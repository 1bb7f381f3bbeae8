package libraries

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
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
	table, err := r.Table()
	require.NoError(t, err)
	page, err := os.ReadFile(docs("keyed-performance.md"))
	require.NoError(t, err)
	updated, err := Update(string(page), table)
	require.NoError(t, err)
	require.Equal(t, string(page), updated, "make bench-keyed writes the table")
}

// A decision takes less than one of go-limiter, allocates nothing, and a key takes
// no more than 40 bytes.
func TestTheLibraryKeepsItsTargets(t *testing.T) {
	r, err := Read(docs("keyed-performance.json"))
	require.NoError(t, err)
	ours, base := r.Rows[0], r.Rows[1]
	require.Contains(t, ours.Limiter, "shared/keyed")
	require.Contains(t, base.Limiter, baseline)
	require.Less(t, Ratio(ours.Many, base.Many), 1.0)
	require.LessOrEqual(t, ours.Bytes, 40)
	require.Zero(t, ours.Allocs)
	require.Equal(t, 100_000, r.Keys)
}

func TestRatio(t *testing.T) {
	require.InDelta(t, 2, Median([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2, Median([]float64{4, 1, 3, 2}), 0, "the lower of two")
	require.InDelta(t, 0.5, Ratio([]float64{1, 50, 2}, []float64{2, 100, 5}), 0, "round by round")
}

func TestATableNeedsABaseline(t *testing.T) {
	_, err := Results{Rows: []Result{{Limiter: "x"}}}.Table()
	require.ErrorContains(t, err, "go-limiter")
}

func TestUpdate(t *testing.T) {
	got, err := Update("a\n<!-- peers -->\nold\n<!-- end -->\nb\n", "new\n")
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- peers -->\nnew\n<!-- end -->\nb\n", got)
	for _, page := range []string{"", "<!-- peers -->\n", "<!-- end -->"} {
		_, err := Update(page, "new\n")
		require.Error(t, err, page)
	}
}
