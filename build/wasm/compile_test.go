package wasm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// stand puts a program in the place of TinyGo and its wasm-opt: it says its version, and
// keeps a list of what it is asked to make, which is always the same module.
func stand(t *testing.T, version, module string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in\nversion) echo 'tinygo version %s linux/amd64' ;;\nenv) echo \"$0\" ;;\n"+
		"*) echo \"$@\" >>%q; while [ \"$1\" != -o ]; do shift; done; cp %q \"$2\" ;;\nesac\n", version, calls, module)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tinygo"), []byte(script), 0o700))
	t.Setenv("TINYGO", filepath.Join(dir, "tinygo"))
	return calls
}

// However many ask for a variant at a time, it is compiled once.
func TestFilterIsCompiledOnce(t *testing.T) {
	module, err := Filter(repository())
	require.NoError(t, err)
	calls := stand(t, fmt.Sprint("0.39.0-", os.Getpid()), module)
	var files [4]string
	var group errgroup.Group
	for i := range files {
		group.Go(func() (err error) {
			files[i], err = Filter(repository(), "sluice_test", fmt.Sprint("v", i%2))
			return err
		})
	}
	require.NoError(t, group.Wait())
	for i, file := range files {
		defer os.Remove(file)
		defer os.Remove(file + ".lock")
		require.Equal(t, files[i%2], file)
	}
	require.NotEqual(t, files[0], files[1])
	text, err := os.ReadFile(calls)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(text), "build "), string(text))
	require.Contains(t, string(text), "-tags sluice_test v0")
}

// A release names the compilers of its filter.
func TestCompilers(t *testing.T) {
	list, err := Compilers()
	require.NoError(t, err)
	for i, name := range []string{"tinygo", "go", "llvm", "binaryen"} {
		require.Equal(t, name, list[i].Name)
		require.Regexp(t, `^(go)?[0-9]+(\.[0-9]+)*$`, list[i].Version)
	}
	require.Equal(t, Toolchain, "GOTOOLCHAIN="+list[1].Version)
	stand(t, "0.39.0", "")
	_, err = Compilers()
	require.ErrorContains(t, err, "for its versions: it says")
}

func TestTinyGoIsNewEnough(t *testing.T) {
	for version, want := range map[string]string{
		"0.39.0": "", "0.40.1": "", "1.0.0": "",
		"0.38.0":  "it is 0.38, and the filter takes 0.39 or newer",
		"unknown": `it calls itself "tinygo version unknown linux/amd64\n"`,
	} {
		stand(t, version, "")
		if _, _, err := find(); want == "" {
			require.NoError(t, err, version)
		} else {
			require.ErrorContains(t, err, want, version)
		}
	}
	t.Setenv("TINYGO", "/nowhere/tinygo")
	_, _, err := find()
	require.ErrorContains(t, err, "use TINYGO=/nowhere/tinygo: ")
}
