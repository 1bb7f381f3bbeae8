package cli

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionText(t *testing.T) {
	settings := func(pairs ...string) (list []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return list
	}
	for _, c := range []struct {
		name string
		info debug.BuildInfo
		wasm string
		want string
	}{
		{"from a commit", debug.BuildInfo{
			GoVersion: "go1.26.8", Main: debug.Module{Version: "v0.3.0"},
			Settings: settings("GOOS", "linux", "GOARCH", "arm64", "vcs.revision", "c0ffee",
				"vcs.time", "2026-11-22T00:00:00Z", "vcs.modified", "false"),
		}, "x", "sluice v0.3.0\ncommit c0ffee of 2026-11-22T00:00:00Z\nbuilt with go1.26.8 for linux/arm64\n" +
			"filter: 1 bytes, sha256 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881\n"},
		{
			"from a changed tree", debug.BuildInfo{
				Main:     debug.Module{Version: "v0.0.0-x+dirty"},
				Settings: settings("vcs.revision", "c0ffee", "vcs.modified", "true"),
			}, "",
			"sluice v0.0.0-x+dirty\ncommit c0ffee, with changes\nfilter: none inside\n",
		},
		{"from no repository", debug.BuildInfo{}, "", "sluice (devel)\nfilter: none inside\n"},
	} {
		require.Equal(t, c.want, versionText(&c.info, []byte(c.wasm)), c.name)
	}
}
