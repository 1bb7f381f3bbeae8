package policyfile_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// lines are in messages where there are lines; the filter reads a policy on one.
var lines = regexp.MustCompile(`, first in line \d+`)

// The filter that is given a bad policy's JSON logs the problems that the file
// is answered with, all but their places.
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
		_, errs, _ := policy.Read(n)
		var want []string
		for _, p := range errs {
			if p.Path != "revision" { // which a pushed policy may have
				want = append(want, "sluice: policy refused: "+lines.ReplaceAllString((&policy.Problem{Path: p.Path, Message: p.Message}).String(), ""))
			}
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
