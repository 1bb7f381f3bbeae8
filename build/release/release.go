package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// options say what is released, and where to.
type options struct {
	tree, version, out, signKey string
	platforms                   []string
}

var allPlatforms = []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"}

var versionText = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// source is a commit.
type source struct {
	commit string
	time   time.Time // of the commit: no file of a release says when it was made
}

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
)

func binaryFile(version, platform string) string {
	return "sluice-" + version + "-" + strings.ReplaceAll(platform, "/", "-")
}

// makeRelease builds everything. What lies in the folder is not there until it is whole.
func makeRelease(ctx context.Context, log io.Writer, o options) error {
	if !versionText.MatchString(o.version) {
		return fmt.Errorf("version %q: want vMAJOR.MINOR.PATCH", o.version)
	}
	for _, platform := range o.platforms {
		if !slices.Contains(allPlatforms, platform) {
			return fmt.Errorf("platform %q: want one of %s", platform, strings.Join(allPlatforms, ", "))
		}
	}
	key, err := signingKey(o.signKey, log)
	if err != nil {
		return err
	}
	from, err := sourceOf(ctx, o.tree)
	if err != nil {
		return err
	}
	o.out = filepath.Clean(o.out)
	if err := os.MkdirAll(filepath.Dir(o.out), 0o750); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(o.out), ".release-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // a release is for everybody
		return err
	}
	if err := copyFilter(o.tree, dir); err != nil {
		return err
	}
	for _, platform := range o.platforms {
		fmt.Fprintln(log, "build", platform)
		if err := buildBinary(ctx, o, from, platform, filepath.Join(dir, binaryFile(o.version, platform))); err != nil {
			return err
		}
	}
	compilers, err := wasm.Compilers()
	if err != nil {
		return err
	}
	modules, err := linkedModules(ctx, o, compilers)
	if err != nil {
		return err
	}
	if err := finish(dir, o, from, modules, compilers, key); err != nil {
		return err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	return os.Rename(dir, o.out)
}

// finish makes the rest of a release out of its binaries and its filter.
func finish(dir string, o options, from source, modules []module, compilers []wasm.Compiler, key *ecdsa.PrivateKey) error {
	licenses, err := identifyAll(modules)
	if err != nil {
		return err
	}
	if err := writeNotices(dir, o.tree, modules, licenses); err != nil {
		return err
	}
	if err := writeSBOM(dir, o, from, modules, licenses, compilers); err != nil {
		return err
	}
	if err := writeImages(dir, o, from); err != nil {
		return err
	}
	if err := writeSums(dir, ".", sumsFile); err != nil {
		return err
	}
	if err := sign(dir, key); err != nil {
		return err
	}
	return share(dir)
}

// share lets everybody read a release: OCI layouts have blobs for their owner alone.
func share(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return os.Chmod(path, info.Mode()|0o444)
	})
}

// copyFilter copies the filter that the binaries embed. It is the one that the compilers
// here make: that of others may lie there still.
func copyFilter(tree, dir string) error {
	file := filepath.Join(dir, filterFile)
	if err := wasm.Compile(tree, file); err != nil {
		return err
	}
	compiled, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	embedded, err := os.ReadFile(filepath.Join(tree, "build/out/embed/sluice.wasm"))
	if err != nil || !bytes.Equal(embedded, compiled) {
		return errors.Join(err, errors.New("the filter that is built is not what the source and the compilers here make: remove build/out/sluice.wasm and run make build"))
	}
	return nil
}

// writeSums writes the digest of every file in a folder, as sha256sum -c reads it. The
// names are those from the release's root.
func writeSums(root, folder, name string) error {
	var text strings.Builder
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, path)
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(content), filepath.ToSlash(file))
		return err
	})
	if err != nil {
		return err
	}
	return publish(filepath.Join(root, name), []byte(text.String()))
}

// publish writes a file of a release.
func publish(file string, content []byte) error {
	return os.WriteFile(file, content, 0o644) //nolint:gosec // a release is for everybody
}
