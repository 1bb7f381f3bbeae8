package cli

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// filterOptions are the flags of a command that runs the filter on a policy, here.
type filterOptions struct{ policy, wasm string }

// AddFlags adds the flags.
func (o *filterOptions) AddFlags(cmd *cobra.Command, policy, condition string) {
	addFileFlag(cmd, &o.policy, policy)
	addWasmFlag(cmd, &o.wasm, condition)
}

// options reads the policy and the filter.
func (o *filterOptions) options(cmd *cobra.Command) (s simulate.Options, err error) {
	s = simulate.Options{
		Policy: o.policy, CacheDir: fleet.CacheDir(),
		Log: func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) },
	}
	s.Text, _, err = readText(cmd, "policy", o.policy, false)
	if err != nil {
		return s, err
	}
	s.Wasm, err = readFilter(o.wasm)
	return s, err
}

// addFileFlag adds -f, and addWasmFlag --wasm.
func addFileFlag(cmd *cobra.Command, file *string, usage string) {
	cmd.Flags().StringVarP(file, "file", "f", "", usage)
}

func addWasmFlag(cmd *cobra.Command, file *string, condition string) {
	cmd.Flags().StringVar(file, "wasm", "", condition+"`FILE` of the filter (default: the one inside this program)")
}

// maxWorkers bounds the worker VMs of one process: each takes tens of MB.
const maxWorkers = 64

// maxFilterBytes bounds a filter's binary. Ours is less than 1 MB.
const maxFilterBytes = 64 << 20

func readFilterFile(name string) ([]byte, error) { return input.File(name, maxFilterBytes) }

// readFilter returns the filter in file, or the one inside this program.
func readFilter(file string) ([]byte, error) {
	if file == "" {
		return build.Filter()
	}
	wasm, err := readFilterFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the filter: %w", err)
	}
	if !bytes.HasPrefix(wasm, []byte("\x00asm")) {
		return nil, withHint(fmt.Errorf("%s is not a WebAssembly module", file),
			"--wasm is the filter, build/out/sluice.wasm; without it the one inside this program runs")
	}
	return wasm, nil
}

// filterFile is the absolute path of the filter's binary: the given one, or else a file in the
// user's cache folder with the filter inside this program.
func filterFile(given string, warnings io.Writer) (string, error) {
	if given == "" {
		wasm, err := build.Filter()
		if err != nil {
			return "", err
		}
		return writeFilter(wasm)
	}
	path, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("find filter: %w", err)
	}
	// The proxy may run on another machine, which has the file.
	if _, err := os.Stat(path); err != nil {
		fmt.Fprintf(warnings, "warning: %s is not on this machine; it has to be on the proxy's\n", path)
	}
	return path, nil
}

// writeFilter puts a filter into the user's cache folder. The file's name is that of its
// content, so that an Envoy that still reads another filter keeps it.
func writeFilter(wasm []byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("write filter: %w: give --wasm FILE", err)
	}
	dir := filepath.Join(cache, "sluice")
	path := filepath.Join(dir, fmt.Sprintf("sluice-%x.wasm", sha256.Sum256(wasm)))
	if info, err := os.Stat(path); err == nil && info.Size() == int64(len(wasm)) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("write filter: %w", err)
	}
	err = replaceFile(path, 0o640, func(w io.Writer) error {
		_, err := w.Write(wasm)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("write filter: %w", err)
	}
	return path, nil
}
