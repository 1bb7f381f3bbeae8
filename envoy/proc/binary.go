// Package proc runs a real Envoy as a child process, for tests, benchmarks and first steps: it
// finds the binary, starts it, asks its admin interface and ends it.
//
// Its invariant: no Envoy outlives the program that started it. It knows nothing of the filter
// or of policies: the caller gives the bootstrap. It must not import another package of this
// module but child.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// ErrNoEnvoy says that no Envoy binary was found anywhere.
var ErrNoEnvoy = errors.New("no envoy binary: run make test, which installs it, put envoy on PATH, " +
	"or set ENVOY_PATH, such as to what build/fetch envoy-1.40.0 prints")

// Find returns the path of the Envoy to use: ENVOY_PATH, else the newest of SLUICE_ENVOY, which
// the Makefile sets, else the one on PATH.
func Find() (string, error) {
	all, err := All()
	if err != nil {
		return "", err
	}
	return all[len(all)-1], nil
}

// All returns the paths of the Envoys that the tests have to pass on, the oldest first: those of
// SLUICE_ENVOY ("1.36.4=PATH,1.40.0=PATH"). If ENVOY_PATH is set, or SLUICE_ENVOY is not, it
// returns the one that Find returns.
func All() ([]string, error) {
	if path := os.Getenv("ENVOY_PATH"); path != "" {
		return checked("ENVOY_PATH", path)
	}
	if list := os.Getenv("SLUICE_ENVOY"); list != "" {
		var paths []string
		for item := range strings.SplitSeq(list, ",") {
			_, path, ok := strings.Cut(item, "=")
			if !ok {
				return nil, fmt.Errorf("read SLUICE_ENVOY: %q is not VERSION=PATH", item)
			}
			paths = append(paths, path)
		}
		return checked("SLUICE_ENVOY", paths...)
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return []string{path}, nil
	}
	return nil, ErrNoEnvoy
}

func checked(variable string, paths ...string) ([]string, error) {
	for _, path := range paths {
		// LookPath on a path with a slash only asks whether it can be run.
		if _, err := exec.LookPath(path); err != nil {
			return nil, fmt.Errorf("find envoy by %s: %w", variable, err)
		}
	}
	return paths, nil
}

var versionLine = regexp.MustCompile(`version: [0-9a-f]+/([^/\s]+)/`)

// Version asks the binary at path which Envoy it is, such as "1.40.0".
func Version(ctx context.Context, path string) (string, error) {
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	found := versionLine.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("ask %s for its version: not an envoy: %q", path, out)
	}
	return string(found[1]), nil
}

// Validate has the Envoy at path check a bootstrap without serving.
func Validate(ctx context.Context, path string, bootstrap []byte) (err error) {
	dir, err := os.MkdirTemp("", "envoy-")
	if err != nil {
		return fmt.Errorf("validate bootstrap: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "bootstrap.yaml")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		return fmt.Errorf("validate bootstrap: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, "--mode", "validate", "--config-path", file, "--log-level", "warning")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("validate bootstrap: %w\n%s", err, out)
	}
	return nil
}
