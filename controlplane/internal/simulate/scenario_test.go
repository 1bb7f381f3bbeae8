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
	files, err := filepath.Glob("testdata/scenario/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			scenario, err := txtar.ParseFile(file)
			require.NoError(t, err)
			dir, texts := t.TempDir(), map[string]string{}
			for _, f := range scenario.Files {
				texts[f.Name] = string(f.Data)
				require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600))
			}
			require.NotEmpty(t, texts["output.jsonl"])
			var out bytes.Buffer
			require.NoError(t, simulate.Run(t.Context(), simulate.Options{
				Wasm: compiled(t), Policy: filepath.Join(dir, "policy.yaml"), Requests: strings.NewReader(texts["requests.jsonl"]), Dir: dir,
				Workers: 2, Seed: 1, CacheDir: buildtest.CacheDir(), Log: func(message string) { t.Log(message) },
			}, &out))
			if *update {
				scenario.Files[len(scenario.Files)-1].Data = out.Bytes()
				require.NoError(t, os.WriteFile(file, txtar.Format(scenario), 0o644))
				return
			}
			require.Equal(t, strings.Split(texts["output.jsonl"], "\n"), strings.Split(out.String(), "\n"))
		})
	}
}
