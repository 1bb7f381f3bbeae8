package main

import (
	"context"
	"crypto/ecdsa"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// release is one that is made.
type release struct {
	tree, version, out, signKey string
	platforms                   []string
	log                         io.Writer

	*os.Root  // the folder that it is made in
	key       *ecdsa.PrivateKey
	filter    []byte
	commit    string
	time      time.Time // of the commit: no file of a release says when it was made
	compilers []wasm.Compiler
	modules   []module // that are linked, by path
	notices   []byte
	images    []mutate.IndexAddendum
}

var allPlatforms = []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"}

var versionText = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// Names of a release's files. Those that a signature makes differ from run to run.
const (
	filterFile    = "sluice.wasm"
	noticesFile   = "THIRD_PARTY_NOTICES.txt"
	sbomFile      = "sluice.cdx.json"
	layoutDir     = "images"
	sumsFile      = "SHA256SUMS" // of all files that do not differ
	signatureDir  = "signatures" // of the images
	signatureSums = "SIGNATURES" // digests of the files in there
	publicKeyFile = "sluice.pub"
	signatureEnd  = ".sig" // of the two lists of digests
	installFile   = "install.sh"
)

// installScript installs a release's command and filter once they fit SHA256SUMS.
//
//go:embed install.sh
var installScript []byte

func (r *release) binaryFile(platform string) string {
	return "sluice-" + r.version + "-" + strings.ReplaceAll(platform, "/", "-")
}

// make makes the release. What lies in the folder is not there until it is whole.
func (r *release) make(ctx context.Context) (err error) {
	if !versionText.MatchString(r.version) || len(r.version) > 100 { // tags end at 128
		return fmt.Errorf("version %q: want vMAJOR.MINOR.PATCH, of at most 100 characters", r.version)
	}
	for _, platform := range r.platforms {
		if !slices.Contains(allPlatforms, platform) {
			return fmt.Errorf("platform %q: want one of %s", platform, strings.Join(allPlatforms, ", "))
		}
	}
	r.key, err = r.readKey()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "release-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r.Root, err = os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	return inTurn(
		func() error { return r.readCommit(ctx) },
		r.compileFilter,
		func() error { return r.buildBinaries(ctx) },
		func() error { return r.findModules(ctx) },
		r.finish)
}

// finish makes the rest of the release out of its binaries, its filter and what they link.
func (r *release) finish() error {
	return inTurn(r.readLicenses, r.writeNotices, r.writeSBOM, r.writeImages,
		func() error { return r.WriteFile(installFile, installScript, 0o700) },
		func() error { return r.writeSums(".", sumsFile) },
		r.signImages,
		func() error { return r.writeSums(signatureDir, signatureSums) },
		r.publish)
}

// inTurn takes steps up to the first that fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// publish puts a copy of the release, which everybody may read, into its place.
func (r *release) publish() error {
	syscall.Umask(0o022)
	whole := filepath.Clean(r.out) + ".unfinished"
	defer os.RemoveAll(whole)
	return inTurn(
		func() error { return os.RemoveAll(whole) },
		func() error { return os.CopyFS(whole, r.FS()) },
		func() error { return os.RemoveAll(r.out) },
		func() error { return os.Rename(whole, filepath.Clean(r.out)) })
}
