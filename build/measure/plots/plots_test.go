package plots

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// The pictures and tables of algorithms.md are what the product says today.
func TestPicturesAreUpToDate(t *testing.T) {
	c := commandLine{sluice: filepath.Join(t.TempDir(), "sluice"), wasm: buildtest.Filter(t)}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", c.sluice, "./controlplane/cmd/sluice")
	cmd.Dir = buildtest.Root()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))

	docs := filepath.Join(buildtest.Root(), "docs")
	figures, err := c.figures(t.Context(), docs)
	require.NoError(t, err)
	require.Len(t, figures.Pictures, 6, "a picture for each algorithm, and one of layered windows")
	stale, err := figures.Stale(docs)
	require.NoError(t, err)
	require.Empty(t, stale, "make plots")
}
