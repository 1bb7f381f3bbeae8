package graft

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Compile compiles the filter of the source tree at root and writes it, with its
// grafts, to file. Flags are more of go build's.
func Compile(root, file string, flags ...string) error {
	// The compiler takes a file it finds there for its own work, up to date or
	// not; the grafted one is neither.
	dir, err := os.MkdirTemp(filepath.Dir(file), ".filter-")
	if err != nil {
		return fmt.Errorf("compile the filter: %w", err)
	}
	defer os.RemoveAll(dir)
	plain := filepath.Join(dir, "plain.wasm")
	plain, err = filepath.Abs(plain)
	if err != nil {
		return fmt.Errorf("compile the filter: %w", err)
	}
	// c-shared makes a reactor: the host calls its exports, nothing ever calls main.
	// The commit stays out, so that the same source makes the same filter.
	args := append([]string{"build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"}, flags...)
	cmd := exec.Command("go", append(args, "-o", plain, "./filter")...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("compile the filter: %w", err), errors.New(string(out)))
	}
	wasm, err := os.ReadFile(plain)
	if err != nil {
		return fmt.Errorf("compile the filter: %w", err)
	}
	if wasm, err = Apply(wasm); err != nil {
		return fmt.Errorf("compile the filter: %w", err)
	}
	ready := filepath.Join(dir, "ready.wasm")
	if err := os.WriteFile(ready, wasm, 0o644); err != nil { //nolint:gosec // Envoy reads it, as whoever it runs as
		return fmt.Errorf("compile the filter: %w", err)
	}
	if err := os.Rename(ready, file); err != nil {
		return fmt.Errorf("compile the filter: %w", err)
	}
	return nil
}
