// Package wasm compiles the filter to WebAssembly by TinyGo.
//
// Its invariant: the same source makes the same module, wherever it lies, and is
// compiled once, however many processes ask for it at a time. It must never import
// another package of this module.
package wasm

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// target says what TinyGo compiles for: WASI as wasip1 has it, without a C library and
// without goroutines. With the tag custommalloc the filter exports its own malloc.
//
//go:embed target.json
var target []byte

// itself is what changes the module beside the filter's source.
//
//go:embed *.go target.json
var itself embed.FS

// options are TinyGo's. A c-shared module has no main: the host calls its exports.
var options = []string{"build", "-buildmode=c-shared", "-no-debug", "-opt=z"}

// Compile compiles the filter of the source tree at root into file.
func Compile(root, file string, tags ...string) error {
	compiled, err := Filter(root, tags...)
	if err != nil {
		return err
	}
	module, err := os.ReadFile(compiled)
	if err != nil {
		return fmt.Errorf("compile the filter: %w", err)
	}
	if err := write(file, module); err != nil {
		return fmt.Errorf("compile the filter: %w", err)
	}
	return nil
}

// Filter compiles the filter of the source tree at root, unless that has been done, and
// returns the file.
func Filter(root string, tags ...string) (string, error) {
	file, err := filter(root, strings.Join(tags, " "))
	if err != nil {
		return "", fmt.Errorf("compile the filter: %w", err)
	}
	return file, nil
}

func filter(root, tags string) (string, error) {
	tinygo, version, err := find()
	if err != nil {
		return "", err
	}
	digest, err := digest(root, version, tags)
	if err != nil {
		return "", err
	}
	file := filepath.Join(out(), "filters", digest+".wasm")
	unlock, err := lock(file)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	return file, compile(tinygo, root, tags, file)
}

// repository is the root of this one, which is not always the tree that is compiled.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

func out() string { return filepath.Join(repository(), "build", "out") }

// digest is that of the sources and of what else makes the module.
func digest(root string, also ...string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", also)
	add := func(in fs.FS, from string) error {
		return fs.WalkDir(in, from, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata/") {
				return err
			}
			content, err := fs.ReadFile(in, path)
			fmt.Fprintf(h, "%q %q\n", path, content)
			return err
		})
	}
	err := add(itself, ".")
	for _, source := range []string{"go.mod", "go.sum", "filter", "shared"} {
		err = errors.Join(err, add(os.DirFS(root), source))
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), err
}

// lock keeps other processes from the same work, until it is undone or this one ends.
func lock(file string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

func compile(tinygo, root, tags, file string) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".compile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	plain := filepath.Join(dir, "plain.wasm")
	described := filepath.Join(dir, "target.json")
	modules := filepath.Join(dir, "filter.mod")
	if err := os.WriteFile(described, target, 0o600); err != nil {
		return err
	}
	if err := writeModules(root, modules); err != nil {
		return err
	}
	cmd := exec.Command(tinygo, append(options, "-target", described, "-tags", tags, "-o", plain, "./filter")...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), Toolchain, "GOFLAGS="+os.Getenv("GOFLAGS")+" -modfile="+modules)
	if said, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(said)))
	}
	module, err := os.ReadFile(plain)
	if err != nil {
		return err
	}
	module, err = setExports(module)
	if err != nil {
		return fmt.Errorf("change the exports of what %s made: %w", tinygo, err)
	}
	module, err = shrink(tinygo, plain, module)
	if err != nil {
		return err
	}
	return write(file, module)
}

// shrink drops what only the exports needed that the module has no more, a tenth of it.
// The file is scratch.
func shrink(tinygo, file string, module []byte) ([]byte, error) {
	optimizer, err := exec.Command(tinygo, "env", "WASMOPT").Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s for its wasm-opt: %w", tinygo, err)
	}
	if err := os.WriteFile(file, module, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(strings.TrimSpace(string(optimizer)), "-Oz", file, "-o", file)
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(err, errors.New(string(said)))
	}
	return os.ReadFile(file)
}

// write makes a file that nobody sees half written.
func write(file string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".write-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()) // Envoy reads it, as whoever it runs as
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// writeModules writes a go.mod with no more than the filter links, in the versions of
// the tree's own: others there are too new for the Go that TinyGo knows.
func writeModules(root, file string) error {
	list := exec.Command("go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}require {{.Path}} {{.Version}}{{end}}{{end}}", "./filter")
	list.Dir = root
	list.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	list.Stderr = new(bytes.Buffer)
	required, err := list.Output()
	if err != nil {
		return errors.Join(err, errors.New(list.Stderr.(*bytes.Buffer).String()))
	}
	text := "module github.com/sluice-ratelimit/sluice\ngo 1.25.0\n" + string(required)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(file, ".mod")+".sum", sums, 0o600)
}
