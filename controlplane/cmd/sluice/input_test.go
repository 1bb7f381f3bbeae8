package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// command is this program as the command itself.
func command(t *testing.T, stderr *bytes.Buffer, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asSluice+"=1", buildtest.Collecting)
	cmd.Stderr = stderr
	return cmd
}

func goodPolicy(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "good.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\nrules: []\n"), 0o600))
	return file
}

// TestSignalsEndReading: a command that reads from a pipe on which nothing comes
// ends with the first signal.
func TestSignalsEndReading(t *testing.T) {
	dir := t.TempDir()
	good := goodPolicy(t, dir)
	for name, args := range map[string][]string{
		"simulate from standard input": {"simulate", "-f", good},
		"simulate from a named pipe":   {"simulate", "-f", good, "-r", "PIPE"},
		"validate from standard input": {"validate", "-f", "-"},
		"import from standard input":   {"import", "envoy-ratelimit", "-"},
		"apply from standard input":    {"apply", "-f", "-"},
	} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(name+", "+signal.String(), func(t *testing.T) {
				t.Parallel()
				pipe := filepath.Join(t.TempDir(), "pipe")
				require.NoError(t, syscall.Mkfifo(pipe, 0o600))
				in, err := os.OpenFile(pipe, os.O_RDWR, 0) // which does not wait for the other end
				require.NoError(t, err)
				defer in.Close()
				args := slices.Clone(args)
				if i := slices.Index(args, "PIPE"); i >= 0 {
					args[i] = pipe
				}
				var stderr bytes.Buffer
				cmd := command(t, &stderr, args...)
				cmd.Stdin = in
				_, err = in.WriteString("{") // and no more
				require.NoError(t, err)
				require.NoError(t, cmd.Start())
				require.Eventually(t, func() bool {
					left, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
					return err == nil && left == 0
				}, patience, 10*time.Millisecond, "it reads")
				require.NoError(t, cmd.Process.Signal(signal))
				require.Error(t, cmd.Wait())
				require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", &stderr)
				require.Equal(t, "error: interrupted\n", stderr.String())
			})
		}
	}
}
