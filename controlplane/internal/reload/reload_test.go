package reload

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type fixture struct {
	t     *testing.T
	file  string
	value *Value[string]
	log   bytes.Buffer
	clock time.Time
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, file: filepath.Join(t.TempDir(), "f"), clock: time.Now()}
	f.write("one")
	v, err := Open(slog.New(slog.NewTextHandler(&f.log, nil)), func(contents [][]byte) (string, error) {
		text := string(contents[0])
		if strings.HasPrefix(text, "bad") {
			return "", errors.New(text)
		}
		return text, nil
	}, f.file)
	require.NoError(t, err)
	v.now = func() time.Time { return f.clock }
	v.looked = f.clock
	f.value = v
	return f
}

func (f *fixture) write(text string) {
	require.NoError(f.t, os.WriteFile(f.file, []byte(text), 0o600))
}

// later returns the value after so long.
func (f *fixture) later(d time.Duration) string {
	f.clock = f.clock.Add(d)
	return f.value.Get()
}

func TestChangedFileIsReadAgain(t *testing.T) {
	f := newFixture(t)
	f.write("two")
	require.Equal(t, "one", f.later(Interval/2), "at most once a second")
	require.Equal(t, "two", f.later(Interval/2))
	require.Equal(t, 1, strings.Count(f.log.String(), "file read again"))

	// A new file in its place, as secrets are rotated.
	require.NoError(t, os.WriteFile(f.file+".new", []byte("six"), 0o600))
	require.NoError(t, os.Rename(f.file+".new", f.file))
	require.Equal(t, "six", f.later(Interval))
}

func TestBadFileChangesNothing(t *testing.T) {
	f := newFixture(t)
	f.write("bad\x1b")
	for range 5 {
		require.Equal(t, "one", f.later(Interval))
	}
	require.Equal(t, 1, strings.Count(f.log.String(), "refused"), "%s", &f.log)
	require.NoError(t, os.Remove(f.file))
	for range 5 {
		require.Equal(t, "one", f.later(Interval))
	}
	require.Equal(t, 2, strings.Count(f.log.String(), "refused"), "%s", &f.log)
	f.write("one")
	require.Equal(t, "one", f.later(Interval))
	require.NoError(t, os.Remove(f.file))
	require.Equal(t, "one", f.later(Interval))
	require.Equal(t, 3, strings.Count(f.log.String(), "refused"), "gone again: %s", &f.log)
	f.write("two")
	require.Equal(t, "two", f.later(Interval))
	f.write(strings.Repeat("x", maxBytes+1))
	require.Equal(t, "two", f.later(Interval))
	require.Contains(t, f.log.String(), "the most is")
}

// A certificate is refused until the moment from which it is valid, and a file
// that was good in between is no reason to say nothing of a bad one.
func TestRefusedFileIsTriedAgain(t *testing.T) {
	f := newFixture(t)
	refused := errors.New("not yet valid")
	parse := f.value.parse
	f.value.parse = func(contents [][]byte) (string, error) {
		if string(contents[0]) == "two" && refused != nil {
			return "", refused
		}
		return parse(contents)
	}
	f.write("two")
	require.Equal(t, "one", f.later(Interval))
	f.write("one")
	require.Equal(t, "one", f.later(Interval))
	f.write("two")
	require.Equal(t, "one", f.later(Interval))
	require.Equal(t, 2, strings.Count(f.log.String(), "refused"), "%s", &f.log)
	refused = nil
	require.Equal(t, "two", f.later(Interval))
}

func TestOpenRefuses(t *testing.T) {
	f, dir := newFixture(t), t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for odd, want := range map[string]string{
		dir + "/none": "no such file", dir: "is a directory, not a regular file", pipe: "is a pipe, not a regular file",
	} {
		_, err := Open(nil, f.value.parse, odd)
		require.ErrorContains(t, err, want)
	}
}

func TestConcurrentUse(t *testing.T) {
	f := newFixture(t)
	f.value.now = func() time.Time { return time.Now().Add(time.Hour) } // look each time
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if got := f.value.Get(); got != "one" {
					t.Errorf("got %q", got)
				}
			}
		})
	}
	wg.Wait()
}
