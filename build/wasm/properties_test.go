//go:build long

package wasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// TestProperties: the random histories and the models of what the filter links hold as the
// filter is compiled, with an int of 32 bits and TinyGo's runtime. Those that
// take TinyGo more than it has say so in their build tags.
func TestProperties(t *testing.T) {
	for dir, tests := range map[string]string{
		"limit":  ".",
		"state":  ".",
		"policy": ".",
		"quota":  ".",
	} {
		t.Run(dir, func(t *testing.T) {
			said, code := runTests(t, "shared/"+dir, compileTests(t, "./shared/"+dir), tests)
			require.Zero(t, code, said)
			require.Contains(t, said, "PASS")
			t.Log(said)
		})
	}
}

// compileTests compiles a package's tests with the filter's target, but for what a program
// has beside: a main, a stack for fmt, and functions of a C library that the host offers.
func compileTests(t *testing.T, dir string) (module []byte) {
	tinygo, _, err := find()
	require.NoError(t, err)
	tmp := t.TempDir()
	described, modules, file := filepath.Join(tmp, "target.json"), filepath.Join(tmp, "tests.mod"), filepath.Join(tmp, "tests.wasm")

	var forTests map[string]any
	require.NoError(t, json.Unmarshal(target, &forTests))
	forTests["build-tags"] = []string{"tinygo.wasm"}
	forTests["ldflags"] = []string{"--stack-first", "--no-demangle", "--allow-undefined"}
	forTests["default-stack-size"] = 1 << 20
	text, err := json.Marshal(forTests)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(described, text, 0o600))

	require.NoError(t, writeModules(repository(), modules))
	text, err = os.ReadFile(modules)
	require.NoError(t, err)
	text = append(text, "require github.com/stretchr/testify v0.0.0\nreplace github.com/stretchr/testify => ./build/wasm/testdata/testify\n"...)
	require.NoError(t, os.WriteFile(modules, text, 0o600))

	cmd := exec.Command(tinygo, "test", "-c", "-no-debug", "-opt=1", "-target", described, "-o", file, dir)
	cmd.Dir = repository()
	cmd.Env = append(os.Environ(), Toolchain, "GOFLAGS=-modfile="+modules)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, string(said))
	module, err = os.ReadFile(file)
	require.NoError(t, err)
	return module
}

// runTests runs the test program of a package and returns what it prints and how it exits.
func runTests(t *testing.T, dir string, module []byte, tests string) (said string, code uint32) {
	ctx := t.Context()
	runtime := wazero.NewRuntime(ctx)
	t.Cleanup(func() { _ = runtime.Close(ctx) })
	_, err := wasi_snapshot_preview1.Instantiate(ctx, runtime)
	require.NoError(t, err)
	compiled, err := runtime.CompileModule(ctx, module)
	require.NoError(t, err)
	c := library{dir: filepath.Join(repository(), dir)}
	_, err = c.build(runtime, compiled).Instantiate(ctx)
	require.NoError(t, err)
	args := []string{"tests", "-test.short", "-test.v", "-test.run", tests}
	_, err = runtime.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithArgs(args...).WithStdout(&c.out).WithStderr(&c.out).WithSysWalltime().WithSysNanotime())
	var exit *sys.ExitError
	if errors.As(err, &exit) {
		return c.out.String(), exit.ExitCode()
	}
	require.NoError(t, err, c.out.String())
	return c.out.String(), 0
}

// library is what tests call of a C library: they print, read their testdata, and draw
// at random. Whatever else they call ends them.
type library struct {
	dir   string
	out   bytes.Buffer
	files []*bytes.Reader
}

func (l *library) build(runtime wazero.Runtime, module wazero.CompiledModule) wazero.HostModuleBuilder {
	known := map[string]func(m api.Memory, args []uint64) uint64{
		"__stdio_exit": func(api.Memory, []uint64) uint64 { return 0 },
		"arc4random":   func(api.Memory, []uint64) uint64 { return uint64(rand.Uint32()) },
		"exp": func(_ api.Memory, args []uint64) uint64 {
			return math.Float64bits(math.Exp(math.Float64frombits(args[0])))
		},
		"log": func(_ api.Memory, args []uint64) uint64 {
			return math.Float64bits(math.Log(math.Float64frombits(args[0])))
		},
		"strlen": func(m api.Memory, args []uint64) uint64 { return uint64(len(text(m, args[0]))) },
		"open": func(m api.Memory, args []uint64) uint64 {
			content, err := os.ReadFile(filepath.Join(l.dir, text(m, args[0])))
			if err != nil {
				panic(err)
			}
			l.files = append(l.files, bytes.NewReader(content))
			return uint64(firstFile + len(l.files) - 1)
		},
		"read": func(m api.Memory, args []uint64) uint64 {
			into, _ := m.Read(uint32(args[1]), uint32(args[2]))
			n, _ := l.files[uint32(args[0])-firstFile].Read(into)
			return uint64(n)
		},
		"fstat": func(api.Memory, []uint64) uint64 { return math.MaxUint32 }, // an error: a file is read to its end
		"close": func(api.Memory, []uint64) uint64 { return 0 },
		"write": func(m api.Memory, args []uint64) uint64 {
			from, _ := m.Read(uint32(args[1]), uint32(args[2]))
			l.out.Write(from)
			return args[2]
		},
	}
	env := runtime.NewHostModuleBuilder("env")
	for _, f := range module.ImportedFunctions() {
		in, name, _ := f.Import()
		if in != "env" {
			continue
		}
		call := api.GoModuleFunc(func(_ context.Context, m api.Module, stack []uint64) {
			do, ok := known[name]
			if !ok {
				panic("the tests call " + name + ", which their library lacks")
			}
			if result := do(m.Memory(), stack); len(stack) > 0 {
				stack[0] = result
			}
		})
		env.NewFunctionBuilder().WithGoModuleFunction(call, f.ParamTypes(), f.ResultTypes()).Export(name)
	}
	return env
}

// firstFile is the descriptor of the first file that is opened, after the three of a program.
const firstFile = 3

// text returns a text that ends in a zero byte.
func text(m api.Memory, at uint64) string {
	rest, _ := m.Read(uint32(at), m.Size()-uint32(at))
	before, _, _ := bytes.Cut(rest, []byte{0})
	return string(before)
}
