package policyfile_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The filter that is given a bad policy's JSON logs the codes and paths of the
// very problems that validate prints in words.
func TestFilterLogsTheSameProblems(t *testing.T) {
	var log []string
	host, err := sim.New(t.Context(), sim.Options{
		Wasm: buildtest.Wasm(t), Workers: 1, VMID: "sluice", PluginName: "sluice", Seed: 1, CacheDir: buildtest.CacheDir(),
		Now: func() int64 { return 1 }, LogLevel: sim.Critical,
		Log: func(_ sim.Level, _ int, message string) { log = append(log, message) },
	})
	require.NoError(t, err)
	defer host.Close()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	asked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		n, err := policyfile.Parse(file, text)
		if err != nil {
			continue // there is no JSON of it
		}
		if filepath.Base(file) == "weak_token.yaml" {
			continue // the list of common words is the control plane's alone
		}
		_, found := policy.Read(n)
		var want, paths []string
		for _, p := range found {
			if p.Path == "revision" { // which a pushed policy may have
				continue
			}
			require.NotEqual(t, string(p.Code), message.Of(&p), "a code without a sentence")
			paths = append(paths, p.Path)
			want = append(want, "sluice: policy refused: "+(&policy.Problem{Path: p.Path, Code: p.Code, Args: p.Args}).Error())
		}
		_, _, _, err = policyfile.Read(file, text)
		var printed policyfile.Errors
		require.ErrorAs(t, err, &printed)
		printed = slices.DeleteFunc(printed, func(p policyfile.Problem) bool { return p.Path == "revision" })
		require.Len(t, printed, len(paths), file)
		for i, p := range printed {
			require.Equal(t, paths[i], p.Path, file)
		}
		log = nil
		require.Error(t, host.Configure(policy.AppendJSON(nil, n)), file)
		require.NotEmpty(t, want, file)
		require.ElementsMatch(t, want, log, file)
		asked++
	}
	require.Greater(t, asked, 20)
	require.NotContains(t, strings.Join(log, "\n"), "panic")
}
