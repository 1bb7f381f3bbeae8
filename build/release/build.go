package main

import (
	"bytes"
	"cmp"
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

// sourceOf asks git for the commit. Where there is no history, SOURCE_DATE_EPOCH says
// the time, if anything does.
func sourceOf(ctx context.Context, tree string) (source, error) {
	text, err := run(ctx, tree, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		if ctx.Err() != nil {
			return source{}, ctx.Err()
		}
		seconds, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), "0"), 10, 64)
		return source{time: time.Unix(seconds, 0).UTC()}, err
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
type module struct{ Path, Version, Sum, Dir string }

// linkedTemplate has go list print the module of a package, unless it is the product's.
const linkedTemplate = `{{with .Module}}{{if not .Main}}{{if .Replace}}{{.Path}} is replaced{{else}}` +
	`{"Path":"{{.Path}}","Version":"{{.Version}}","Sum":"{{.Sum}}","Dir":"{{.Dir}}"}{{end}}{{end}}{{end}}`

// linkedModules returns the modules that any binary or the filter links, by path.
func linkedModules(ctx context.Context, o options, compilers []wasm.Compiler) ([]module, error) {
	programs := map[string]string{"wasip1/wasm": "./filter"} // by platform
	for _, platform := range o.platforms {
		programs[platform] = command
	}
	found := map[string]bool{} // in JSON
	for platform, program := range programs {
		text, err := run(ctx, o.tree, environment(platform), "go", "list", "-deps", "-f", linkedTemplate, program)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			found[line] = true
		}
	}
	var list []module
	for text := range found {
		var m module
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			return nil, fmt.Errorf("%s: a release links what go.mod names: %w", strings.TrimSpace(text), err)
		}
		list = append(list, m)
	}
	for _, toolchain := range []string{"", wasm.Toolchain} {
		library, err := standardLibrary(ctx, o.tree, toolchain)
		if err != nil {
			return nil, err
		}
		list = append(list, library)
	}
	tinygo, err := tinyGo(ctx, o.tree, compilers[0].Version)
	if err != nil {
		return nil, err
	}
	list = append(list, tinygo)
	slices.SortFunc(list, func(a, b module) int { return strings.Compare(a.Path+a.Version, b.Path+b.Version) })
	return list, nil
}

// tinyGo has the runtime that the filter links.
func tinyGo(ctx context.Context, tree, version string) (m module, err error) {
	text, err := run(ctx, filepath.Join(tree, "build", "tinygo"), nil, "go", "mod", "download", "-json", "github.com/tinygo-org/tinygo@v"+version)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(text, &m)
}

// standardLibrary is what every Go program links: the binaries that of the Go here, the
// filter that of another.
func standardLibrary(ctx context.Context, tree, toolchain string) (module, error) {
	text, err := run(ctx, tree, []string{toolchain}, "go", "env", "GOVERSION", "GOROOT")
	if err != nil {
		return module{}, err
	}
	version, dir, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return module{Path: "std", Version: version, Dir: dir}, nil
}
