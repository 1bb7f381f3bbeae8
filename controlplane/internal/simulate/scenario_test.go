package simulate_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

var update = flag.Bool("update", false, "write what comes of the scenarios into their files")

// Each scenario says what comes of lines, to the byte, and of cluster.yaml the same.
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
		o := simulate.Options{Workers: 2, Dir: dir}
		require.NoError(t, json.Unmarshal([]byte(cmp.Or(texts["options.json"], "{}")), &o))
		out, err := run(t, texts["policy.yaml"], texts["requests.jsonl"], o)
		require.NoError(t, err)
		if output.Data = []byte(out); texts["cluster.yaml"] != "" {
			same, err := run(t, texts["cluster.yaml"], texts["requests.jsonl"], o)
			require.NoError(t, err)
			require.Equal(t, out, same)
		}
	})
}
