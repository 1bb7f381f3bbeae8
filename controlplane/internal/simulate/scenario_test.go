package simulate_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

var update = flag.Bool("update", false, "write what comes of the scenarios into their files")

// Each scenario says what comes of lines, to the byte.
func TestScenarios(t *testing.T) {
	buildtest.Archives(t, "testdata/scenario/*.txtar", *update, func(files []txtar.File) {
		dir, texts := t.TempDir(), map[string]string{}
		for _, f := range files {
			texts[f.Name] = string(f.Data)
			require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600))
		}
		output := &files[len(files)-1]
		require.Equal(t, "output.jsonl", output.Name)
		require.NotEmpty(t, texts["requests.jsonl"])
		var out bytes.Buffer
		require.NoError(t, simulate.Run(t.Context(), simulate.Options{
			Wasm: compiled(t), Policy: filepath.Join(dir, "policy.yaml"), Requests: strings.NewReader(texts["requests.jsonl"]), Dir: dir,
			Workers: 2, Seed: 1, CacheDir: buildtest.CacheDir(), Log: func(message string) { t.Log(message) },
		}, &out))
		output.Data = out.Bytes()
	})
}
