package wasm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// Toolchain says, to the go command, whose standard library TinyGo 0.39 compiles.
const Toolchain = "GOTOOLCHAIN=go1.25.5"

var versionText = regexp.MustCompile(`tinygo version (\d+)\.(\d+)`)

// find returns a TinyGo and its version: the one that the environment names, the one on
// PATH if it is new enough, or else one that is made here.
func find() (file, version string, err error) {
	if named := os.Getenv("TINYGO"); named != "" {
		file, err = exec.LookPath(named)
		if err == nil {
			file, err = filepath.Abs(file)
		}
		if err == nil {
			version, err = ask(file)
		}
		if err != nil {
			return "", "", fmt.Errorf("use TINYGO=%s: %w", named, err)
		}
		return file, version, nil
	}
	version, err = ask("tinygo")
	if err == nil {
		return "tinygo", version, nil
	}
	file = filepath.Join(out(), "tinygo", "bin", "tinygo")
	unlock, err := lock(filepath.Join(out(), "tinygo"))
	if err != nil {
		return "", "", err
	}
	defer unlock()
	version, err = ask(file)
	if err == nil {
		return file, version, nil
	}
	install := exec.Command(filepath.Join(repository(), "build", "tinygo", "install"), filepath.Join(out(), "tinygo"))
	install.Stdout, install.Stderr = os.Stderr, os.Stderr
	if err := install.Run(); err != nil {
		return "", "", errNone
	}
	version, err = ask(file)
	return file, version, err
}

var errNone = errors.New("there is no TinyGo of at least 0.39 on PATH, and none could be made here. " +
	"On macOS: `brew install tinygo-org/tools/tinygo`. On Debian 12 or newer: `apt-get install g++`, and one is made. " +
	"Elsewhere: https://tinygo.org/getting-started/install/. TINYGO= names another")

// ask returns the version of a TinyGo that is new enough.
func ask(tinygo string) (string, error) {
	said, err := exec.Command(tinygo, "version").Output()
	if err != nil {
		return "", err
	}
	m := versionText.FindSubmatch(said)
	if m == nil {
		return "", fmt.Errorf("it calls itself %q", said)
	}
	major, _ := strconv.Atoi(string(m[1]))
	minor, _ := strconv.Atoi(string(m[2]))
	if major == 0 && minor < 39 {
		return "", fmt.Errorf("it is %d.%d, and the filter takes 0.39 or newer", major, minor)
	}
	return string(said), nil
}

// Compiler is one of those that decide the module's bytes.
type Compiler struct{ Name, Version string }

var compilersText = regexp.MustCompile(
	`^tinygo version (\S+) .*using go version (\S+) and LLVM version (\S+)\)\nwasm-opt version (\S+)`)

// Compilers returns those that are here.
func Compilers() ([]Compiler, error) {
	tinygo, _, err := find()
	if err != nil {
		return nil, err
	}
	ask := exec.Command("sh", "-c", `"$0" version && "$("$0" env WASMOPT)" --version`, tinygo)
	ask.Env = append(os.Environ(), Toolchain)
	said, err := ask.CombinedOutput()
	m := compilersText.FindStringSubmatch(string(said))
	if err != nil || m == nil {
		return nil, errors.Join(err, fmt.Errorf("ask %s for its versions: it says %q", tinygo, said))
	}
	return []Compiler{{"tinygo", m[1]}, {"go", m[2]}, {"llvm", m[3]}, {"binaryen", m[4]}}, nil
}
