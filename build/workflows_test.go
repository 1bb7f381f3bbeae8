package build

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An action runs with the release's secrets. A tag can be moved to other code, a
// commit cannot; the version behind it is for readers.
func TestActionsArePinned(t *testing.T) {
	pinned := regexp.MustCompile(`^uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	files, err := filepath.Glob(filepath.Join("..", ".github", "workflows", "*"))
	require.NoError(t, err)
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if _, step, found := strings.Cut(line, "uses:"); found {
				require.Regexp(t, pinned, "uses:"+strings.TrimRight(step, "\n"), file)
				n++
			}
		}
	}
	require.Positive(t, n, "no workflow uses an action")
}
