package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/sluice-ratelimit/sluice/build"
)

// Version and commit of a release, set by the linker: a release is built without the repository's
// history, so that its bytes are the same wherever it is built.
var releaseVersion, releaseCommit string

// printVersion prints what this program was built from, and the digest of the
// filter inside it: the same as `sha256sum sluice.wasm`, and as a resource's
// sha256.
func printVersion(w io.Writer) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if releaseVersion != "" {
		info.Main.Version = releaseVersion
	}
	if releaseCommit != "" {
		info.Settings = append(info.Settings, debug.BuildSetting{Key: "vcs.revision", Value: releaseCommit})
	}
	wasm, err := build.Filter()
	if err != nil && !errors.Is(err, build.ErrNoFilter) {
		return err
	}
	_, err = io.WriteString(w, versionText(info, wasm))
	return err
}

// versionText is one fact a line: version, commit where the build knows it,
// compiler, filter.
func versionText(info *debug.BuildInfo, wasm []byte) string {
	setting := map[string]string{}
	for _, s := range info.Settings {
		setting[s.Key] = s.Value
	}
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	text := "sluice " + version + "\n"
	if revision := setting["vcs.revision"]; revision != "" {
		text += "commit " + revision
		if setting["vcs.time"] != "" {
			text += " of " + setting["vcs.time"]
		}
		if setting["vcs.modified"] == "true" {
			text += ", with changes"
		}
		text += "\n"
	}
	if info.GoVersion != "" {
		text += fmt.Sprintf("built with %s for %s/%s\n", info.GoVersion, setting["GOOS"], setting["GOARCH"])
	}
	if len(wasm) == 0 {
		return text + "filter: none inside\n"
	}
	return text + fmt.Sprintf("filter: %d bytes, sha256 %x\n", len(wasm), sha256.Sum256(wasm))
}
