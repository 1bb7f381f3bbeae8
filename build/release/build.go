package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// run runs a command in the tree and returns what it prints.
func run(ctx context.Context, tree string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = tree, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, args[0], err, stderr.String())
	}
	return out, nil
}

// sourceOf asks git for the commit.
func sourceOf(ctx context.Context, tree string) (source, error) {
	text, err := run(ctx, tree, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return source{}, err
	}
	commit, stamp, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return source{}, err
	}
	changed, err := run(ctx, tree, nil, "git", "status", "--porcelain")
	if len(changed) > 0 {
		commit += "+changes"
	}
	return source{commit, time.Unix(seconds, 0).UTC()}, err
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

func buildBinary(ctx context.Context, o options, from source, platform, out string) error {
	const variable = "-X github.com/sluice-ratelimit/sluice/controlplane/internal/cli.release"
	flags := fmt.Sprintf("-s -w -buildid= %sVersion=%s %sCommit=%s", variable, o.version, variable, from.commit)
	_, err := run(ctx, o.tree, environment(platform), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags="+flags, "-o", out, command)
	return err
}

// module is one that a binary or the filter links.
type module struct {
	Path, Version, Sum, Dir string
	Main                    bool
	Replace                 *struct{ Path string }
}

// linkedModules returns the modules that any binary or the filter links, by path: with
// them Go's library, which the filter has from another Go, and the filter's runtime.
func linkedModules(ctx context.Context, o options, compilers []wasm.Compiler) ([]module, error) {
	programs := map[string]string{"wasip1/wasm": "./filter"} // by platform
	for _, platform := range o.platforms {
		programs[platform] = command
	}
	found := map[string]module{}
	for platform, program := range programs {
		text, err := run(ctx, o.tree, environment(platform), "go", "list", "-deps", "-json=Module", program)
		if err != nil {
			return nil, err
		}
		for packages := json.NewDecoder(bytes.NewReader(text)); packages.More(); {
			var p struct{ Module *module }
			if err := packages.Decode(&p); err != nil {
				return nil, err
			}
			if p.Module == nil || p.Module.Main {
				continue
			}
			if p.Module.Replace != nil {
				return nil, fmt.Errorf("%s is replaced: a release links what go.mod names", p.Module.Path)
			}
			found[p.Module.Path] = *p.Module
		}
	}
	for _, toolchain := range []string{"", wasm.Toolchain} {
		text, err := run(ctx, o.tree, []string{toolchain}, "go", "env", "GOVERSION", "GOROOT")
		if err != nil {
			return nil, err
		}
		version, dir, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		found["std"+version] = module{Path: "std", Version: version, Dir: dir}
	}
	var tinygo module
	text, err := run(ctx, filepath.Join(o.tree, "build", "tinygo"), nil,
		"go", "mod", "download", "-json", "github.com/tinygo-org/tinygo@v"+compilers[0].Version)
	if err == nil {
		err = json.Unmarshal(text, &tinygo)
	}
	list := []module{tinygo}
	for _, m := range found {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b module) int { return strings.Compare(a.Path+"@"+a.Version, b.Path+"@"+b.Version) })
	return list, err
}
