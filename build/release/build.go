package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// output runs a command in the tree and returns what it prints.
func (r *release) output(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.tree
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return out, nil
}

// readCommit asks git for the commit.
func (r *release) readCommit(ctx context.Context) error {
	text, err := r.output(ctx, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	var seconds int64
	if _, err := fmt.Sscan(string(text), &r.commit, &seconds); err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	r.time = time.Unix(seconds, 0).UTC()
	changed, err := r.output(ctx, nil, "git", "status", "--porcelain")
	if len(changed) > 0 {
		r.commit += "+changes"
	}
	return err
}

// compileFilter makes the filter that the binaries embed. It is the one that the compilers
// here make: that of others may lie there still.
func (r *release) compileFilter() (err error) {
	r.compilers, err = wasm.Compilers()
	if err != nil {
		return err
	}
	file, err := wasm.Filter(r.tree)
	if err != nil {
		return err
	}
	r.filter, err = os.ReadFile(file)
	if err != nil {
		return err
	}
	embedded, err := os.ReadFile(filepath.Join(r.tree, "build/out/embed/sluice.wasm"))
	if err != nil || !bytes.Equal(embedded, r.filter) {
		return errors.Join(err, errors.New("build/out/sluice.wasm is not what this source and these compilers make: "+
			"remove it and run make build"))
	}
	return r.WriteFile(filterFile, r.filter, 0o600)
}

// environment is what a build sees, so that the builder's settings do not matter.
func environment(platform string) []string {
	goos, goarch, _ := strings.Cut(platform, "/")
	return []string{
		"GOOS=" + goos, "GOARCH=" + goarch, "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=",
		"GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off", "GOWORK=off",
	}
}

const command = "./controlplane/cmd/sluice"

func (r *release) buildBinaries(ctx context.Context) error {
	const variable = "-X github.com/sluice-ratelimit/sluice/controlplane/internal/cli.release"
	flags := fmt.Sprintf("-s -w -buildid= %sVersion=%s %sCommit=%s", variable, r.version, variable, r.commit)
	for _, platform := range r.platforms {
		fmt.Fprintln(r.log, "build", platform)
		file := filepath.Join(r.Name(), r.binaryFile(platform))
		_, err := r.output(ctx, environment(platform), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags="+flags,
			"-o", file, command)
		if err != nil {
			return err
		}
	}
	return nil
}

// module is one that a binary or the filter links.
type module struct {
	Path, Version, Sum, Dir string
	Main                    bool
	Replace                 *struct{ Path string }

	license string // in SPDX's form
	terms   string
}

// findModules finds the modules that any binary or the filter links: with them Go's
// library, which the filter has from another Go, and the filter's runtime.
func (r *release) findModules(ctx context.Context) error {
	programs := map[string]string{"wasip1/wasm": "./filter"} // by platform
	for _, platform := range r.platforms {
		programs[platform] = command
	}
	found := map[string]module{} // by path and version
	for platform, program := range programs {
		text, err := r.output(ctx, environment(platform), "go", "list", "-deps", "-json=Module", program)
		if err != nil {
			return err
		}
		for packages := json.NewDecoder(bytes.NewReader(text)); packages.More(); {
			var p struct{ Module module }
			if err := packages.Decode(&p); err != nil {
				return err
			}
			if p.Module.Replace != nil {
				return fmt.Errorf("%s is replaced: a release links what go.mod names", p.Module.Path)
			}
			if p.Module.Path != "" && !p.Module.Main {
				found[p.Module.Path+"@"+p.Module.Version] = p.Module
			}
		}
	}
	for _, toolchain := range []string{"", wasm.Toolchain} {
		text, err := r.output(ctx, []string{toolchain}, "go", "env", "GOVERSION", "GOROOT")
		if err != nil {
			return err
		}
		version, dir, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		found["std@"+version] = module{Path: "std", Version: version, Dir: dir}
	}
	var tinygo module
	text, err := r.output(ctx, nil, "go", "mod", "download", "-C", "build/tinygo", "-json",
		"github.com/tinygo-org/tinygo@v"+r.compilers[0].Version)
	if err == nil {
		err = json.Unmarshal(text, &tinygo)
	}
	found[tinygo.Path+"@"+tinygo.Version] = tinygo
	for _, id := range slices.Sorted(maps.Keys(found)) {
		r.modules = append(r.modules, found[id])
	}
	return err
}
