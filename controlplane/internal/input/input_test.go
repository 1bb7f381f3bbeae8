package input_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func pipe(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(name, 0o600))
	return name
}

func TestAFileIsRegularAndBounded(t *testing.T) {
	dir := t.TempDir()
	text, err := input.File(write(t, filepath.Join(dir, "four"), "four"), 4)
	require.NoError(t, err)
	require.Equal(t, "four", string(text))
	for name, want := range map[string]string{
		write(t, filepath.Join(dir, "five"), "12345"): "five is 5 bytes, the most is 4",
		"/dev/zero":                  "/dev/zero is a device, not a regular file",
		dir:                          "is a directory, not a regular file",
		pipe(t):                      "pipe is a pipe, not a regular file",
		"/proc/self/status":          "/proc/self/status is more than 4 bytes",
		filepath.Join(dir, "absent"): "no such file or directory",
	} {
		_, err := input.File(name, 4)
		require.ErrorContains(t, err, want, name)
	}
}

func TestAFileInAFolderStaysThere(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "a"), "a")
	write(t, filepath.Join(dir, "a"), "a")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "below"), 0o700))
	write(t, filepath.Join(dir, "below", "a"), "a")
	require.NoError(t, os.Symlink("below/a", filepath.Join(dir, "inside")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "a"), filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "zero")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "folder")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	for _, name := range []string{"a", "below/a", "inside", "below/../a"} {
		text, err := input.FileIn(root, name, 1)
		require.NoError(t, err, name)
		require.Equal(t, "a", string(text))
	}
	rejected := []string{"out", "zero", "folder/a", "../a", "below/../../a", filepath.Join(dir, "a"), "/dev/zero"}
	for _, name := range append(rejected, "pipe", ".", "") {
		_, err := input.FileIn(root, name, 1)
		require.Error(t, err, name)
	}
}

func TestAReaderIsBounded(t *testing.T) {
	text, err := input.All(t.Context(), strings.NewReader("four"), "standard input", 4)
	require.NoError(t, err)
	require.Equal(t, "four", string(text))
	_, err = input.All(t.Context(), strings.NewReader("12345"), "standard input", 4)
	require.ErrorContains(t, err, "standard input is more than 4 bytes")
}

// Neither a pipe without a writer nor one whose writer is
// silent is waited for once the context has ended.
func TestAReadEndsWithItsContext(t *testing.T) {
	name := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := make(chan error)
	go func() {
		_, err := input.Open(ctx, name)
		interrupted <- err
	}()
	cancel()
	require.ErrorIs(t, <-interrupted, input.ErrInterrupted)

	silent, writer, err := os.Pipe()
	require.NoError(t, err)
	defer writer.Close()
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = input.All(ctx, silent, "standard input", 4)
	require.ErrorIs(t, err, input.ErrInterrupted)
	require.NoError(t, silent.Close())

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = io.ReadAll(input.Until(canceled, endless{}))
	require.ErrorIs(t, err, input.ErrInterrupted)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
