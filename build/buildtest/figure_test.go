package buildtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFigure(t *testing.T) {
	file := filepath.Join(Root(), "build", "out", "figures", "build-buildtest-TestFigure.txt")
	defer os.Remove(file)
	for _, n := range []int{1, 2} {
		Figure(t, "%d things", n)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "build/buildtest: 2 things\n", string(text), "the last run counts")
}
