package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/stretchr/testify/require"
)

var block = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// page returns the commands of docs/install.md.
func page(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tree, "docs/install.md"))
	require.NoError(t, err)
	var list []string
	for _, found := range block.FindAllStringSubmatch(string(text), -1) {
		list = append(list, found[1])
	}
	require.Len(t, list, 2, "one installs, one verifies a whole release")
	return list
}

// served serves a release at an address of this machine.
func served(t *testing.T, dir string) string {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return server.URL
}

// shell runs a script in a folder and returns what it prints.
func shell(t *testing.T, dir, script string, environment ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	return string(out), err
}

func onLinux(t *testing.T) bool {
	if runtime.GOOS != "linux" {
		t.Log("the page's commands are run on Linux")
	}
	return runtime.GOOS == "linux"
}

// The page's commands for a whole release pass, and find a byte that changed in any file.
func TestInstallPage(t *testing.T) {
	if !onLinux(t) {
		return
	}
	dir, _ := standIn(t)
	verify := page(t)[1]
	for name, text := range files(t, dir) {
		damaged := []byte(text)
		damaged[len(damaged)/2] ^= 1
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), damaged, 0o644))
		_, err := shell(t, dir, verify)
		require.Error(t, err, "a flipped byte in %s", name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	_, err := shell(t, dir, verify)
	require.NoError(t, err)
}

// TestInstall runs the page's first commands: they fetch a release with this tree's command from an
// address, and what they install runs.
func TestInstall(t *testing.T) {
	if !onLinux(t) {
		return
	}
	built := filepath.Join(t.TempDir(), "sluice")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", built, command)
	build.Dir = tree
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	binary, err := os.ReadFile(built)
	require.NoError(t, err)
	dir, _ := releaseOf(t, func(platform string) []byte {
		if platform == "linux/"+runtime.GOARCH {
			return binary
		}
		return []byte(platform)
	})

	home := t.TempDir()
	said, err := shell(t, t.TempDir(), page(t)[0], "RELEASE="+served(t, dir), "HOME="+home,
		"KEY="+filepath.Join(dir, publicKeyFile))
	require.NoError(t, err)
	require.Contains(t, said, "installed "+home+"/.local/bin/sluice and "+home+"/.local/lib/sluice/sluice.wasm\nsluice ")
	require.Contains(t, said, home+"/.local/bin is not in PATH yet: export PATH=\""+home+"/.local/bin:$PATH\"\n")
	require.NotContains(t, said, "was not verified")
	require.Equal(t, files(t, dir)[filterFile], files(t, home)[".local/lib/sluice/sluice.wasm"])
	said, err = shell(t, home, ".local/bin/sluice validate -f -", "PATH="+os.Getenv("PATH"))
	require.Error(t, err)
	require.Contains(t, said, "error: ")
}

// refusal is a release in which something is wrong, and how the script says so: RELEASE stands
// for the place of the file that it names.
type refusal struct {
	change      func(dir string) error
	environment string
	want        string
}

// refusals are those of a release with these files.
func refusals(t *testing.T, all map[string]string, mine, key string) map[string]refusal {
	t.Helper()
	write := func(name, text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600) }
	}
	without := func(name string) func(string) error {
		return func(dir string) error { return os.Remove(filepath.Join(dir, name)) }
	}
	another := &release{log: io.Discard}
	var err error
	another.key, err = another.readKey()
	require.NoError(t, err)
	signature, err := another.sign([]byte(all[sumsFile]))
	require.NoError(t, err)
	public, err := cryptoutils.MarshalPublicKeyToPEM(another.key.Public())
	require.NoError(t, err)
	others := t.TempDir() // a key, and a machine of another kind
	require.NoError(t, write(publicKeyFile, string(public))(others))
	require.NoError(t, write("uname", "#!/bin/sh\necho Plan9\n")(others))
	require.NoError(t, os.Chmod(filepath.Join(others, "uname"), 0o700))

	const unsigned = "no valid signature of the key"
	return map[string]refusal{
		"another command":   {write(mine, all[mine]+"#"), "", mine + " is not the file that SHA256SUMS lists"},
		"another filter":    {write(filterFile, "\x00asm"), "", "sluice.wasm is not the file that SHA256SUMS lists"},
		"no command":        {without(mine), "", "RELEASE/" + mine},
		"no filter":         {without(filterFile), "", "RELEASE/sluice.wasm"},
		"no sums":           {without(sumsFile), "", "RELEASE/SHA256SUMS"},
		"no signature":      {without(sumsFile + signatureEnd), key, "RELEASE/SHA256SUMS.sig"},
		"another signature": {write(sumsFile+signatureEnd, signature), key, unsigned},
		"changed sums":      {write(sumsFile, all[sumsFile]+"#"), key, unsigned},
		"another key":       {nil, "KEY=" + filepath.Join(others, publicKeyFile), unsigned},
		"no key":            {nil, "KEY=/nowhere", "cannot read the key /nowhere"},
		"unknown platform": {nil, "PATH=" + others + ":" + os.Getenv("PATH"),
			"no command for plan9-Plan9, only sluice-v0.1.0-darwin-amd64 "},
		"no place": {nil, "PREFIX=/proc", "cannot write to /proc/bin: run this script as root, or set PREFIX"},
	}
}

// A release in which anything is wrong is refused in one sentence, before anything is written.
func TestInstallRefuses(t *testing.T) {
	if !onLinux(t) {
		return
	}
	dir, _ := standIn(t)
	all, mine := files(t, dir), "sluice-v0.1.0-linux-"+runtime.GOARCH
	for name, c := range refusals(t, all, mine, "KEY="+filepath.Join(dir, publicKeyFile)) {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			release, prefix := filepath.Join(t.TempDir(), "v0.1.0"), t.TempDir()
			require.NoError(t, os.CopyFS(release, os.DirFS(dir)))
			if c.change != nil {
				require.NoError(t, c.change(release))
			}
			address := served(t, release)
			for place, file := range map[string]string{address: address + "/", release: release + " has no "} {
				said, err := shell(t, t.TempDir(), "sh "+release+"/install.sh "+place, "PREFIX="+prefix, c.environment)
				require.Error(t, err)
				require.Contains(t, said, strings.ReplaceAll(c.want, "RELEASE/", file))
				require.Equal(t, 1, strings.Count(said, "\n"), "one line")
				require.Contains(t, said, ". Nothing was installed.\n")
				require.Empty(t, files(t, prefix))
			}
		})
	}
	said, err := shell(t, t.TempDir(), "sh "+dir+"/install.sh ftp://127.0.0.1/v0.1.0")
	require.Error(t, err)
	require.Contains(t, said, "ftp://127.0.0.1/v0.1.0 is neither a folder nor an address that begins with https://")

	// A release in the folder of the script needs no address.
	prefix := t.TempDir()
	said, err = shell(t, t.TempDir(), "sh "+dir+"/install.sh", "PREFIX="+prefix)
	require.NoError(t, err)
	require.Contains(t, said, "SHA256SUMS was not verified: set KEY to check its signature")
	require.Equal(t, all[mine], files(t, prefix)["bin/sluice"])
}

// Whatever stops the script in between, nothing of the release stays behind.
func TestInstallIsWholeOrNothing(t *testing.T) {
	if !onLinux(t) {
		return
	}
	dir, _ := standIn(t)
	tools := t.TempDir()
	for _, name := range strings.Fields("awk cat chmod cp cut dirname grep mkdir mktemp mv rm sed sh tr uname") {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(tools, name)))
	}
	for name, c := range map[string]struct {
		prepare     func(prefix string) error
		environment string
		want        string
	}{
		"a folder has the command's name": {func(prefix string) error {
			return os.MkdirAll(filepath.Join(prefix, "bin/sluice"), 0o700)
		}, "", "PREFIX/bin/sluice is a folder"},
		"a folder has the filter's name": {func(prefix string) error {
			return os.MkdirAll(filepath.Join(prefix, "lib/sluice/sluice.wasm"), 0o700)
		}, "", "PREFIX/lib/sluice/sluice.wasm is a folder"},
		"no room for the filter": {func(prefix string) error {
			lib := filepath.Join(prefix, "lib/sluice")
			return errors.Join(os.MkdirAll(lib, 0o700), os.Symlink("/dev/full", filepath.Join(lib, "sluice.wasm.new")))
		}, "", "cannot write to PREFIX/lib/sluice: "},
		"no program for digests": {func(string) error { return nil }, "PATH=" + tools,
			"to compare digests, this script needs sha256sum or shasum"},
	} {
		prefix := t.TempDir()
		require.NoError(t, c.prepare(prefix), name)
		said, err := shell(t, t.TempDir(), "sh "+dir+"/install.sh", "PREFIX="+prefix, c.environment)
		require.Error(t, err, name)
		require.Contains(t, said, "error: "+strings.ReplaceAll(c.want, "PREFIX", prefix), name)
		require.Contains(t, said, "Nothing was installed.\n", name)
		left, err := shell(t, prefix, "find . -type f -o -type l")
		require.NoError(t, err, name)
		require.Empty(t, left, name)
	}
}

// What is installed anyone can read, from a release that only its owner can; a prefix may be
// relative and have spaces, and the line for PATH works as it is printed.
func TestInstallInAFolderOfAnyName(t *testing.T) {
	if !onLinux(t) {
		return
	}
	dir, _ := standIn(t)
	release, at := filepath.Join(t.TempDir(), "a release"), t.TempDir()
	require.NoError(t, os.CopyFS(release, os.DirFS(dir)))
	mine := filepath.Join(release, "sluice-v0.1.0-linux-"+runtime.GOARCH)
	program := "#!/bin/sh\necho sluice v0.1.0\n"
	require.NoError(t, os.WriteFile(mine, []byte(program), 0o600))
	require.NoError(t, os.Chmod(filepath.Join(release, filterFile), 0o600))
	_, err := shell(t, release, "sha256sum sluice-v* sluice.wasm >SHA256SUMS")
	require.NoError(t, err)

	said, err := shell(t, at, "sh '"+release+"/install.sh'", "PREFIX=my own")
	require.NoError(t, err)
	_, line, isThere := strings.Cut(said, " is not in PATH yet: ")
	require.True(t, isThere, said)
	said, err = shell(t, t.TempDir(), line+"sluice")
	require.NoError(t, err)
	require.Equal(t, "sluice v0.1.0\n", said)
	for name, mode := range map[string]os.FileMode{"bin/sluice": 0o755, "lib/sluice/sluice.wasm": 0o644} {
		info, err := os.Stat(filepath.Join(at, "my own", name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), name)
	}
}
