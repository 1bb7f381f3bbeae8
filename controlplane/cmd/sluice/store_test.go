package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sluice runs the command and returns what it prints.
func sluice(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asSluice+"=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestBackupWhileApplying takes backups while others apply, kills serve, ruins
// the newest meta page of its database, and goes on from the last backup.
func TestBackupWhileApplying(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startServe(t, dir)
	var mu sync.Mutex
	var backedUp atomic.Bool
	acknowledged := map[int]string{}
	var appliers sync.WaitGroup
	for applier := range 3 {
		appliers.Go(func() {
			for i := 0; !backedUp.Load(); i++ {
				text := fmt.Sprintf("version: 1\ndomain: d-%d-%d\nrules: []\n%s", applier, i, padding(i))
				revision, err := s.apply(text)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged[revision] = text
				mu.Unlock()
			}
		})
	}
	backup := filepath.Join(t.TempDir(), "sluice.backup")
	in := map[int]string{} // acknowledged before the last backup began
	for range 5 {
		mu.Lock()
		for revision, text := range acknowledged {
			in[revision] = text
		}
		mu.Unlock()
		out, err := sluice(t, "store", "backup", "-o", backup, "--server", s.url)
		require.NoError(t, err, out)
	}
	backedUp.Store(true)
	appliers.Wait()
	require.NoError(t, s.process.Kill())
	_, _ = s.process.Wait()

	file := filepath.Join(dir, "sluice.db")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	newest, page := 0, os.Getpagesize()
	const transaction = 64 // its place in a meta page
	if binary.NativeEndian.Uint64(content[page+transaction:]) > binary.NativeEndian.Uint64(content[transaction:]) {
		newest = page
	}
	content[newest+transaction]++
	require.NoError(t, os.WriteFile(file, content, 0o600))
	out, err := sluice(t, "serve", "--data", dir, "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0")
	require.Error(t, err)
	// The last transaction may have written over pages of the one before.
	require.Regexp(t, "it lacks what was acknowledged|is overwritten; revisions up to [0-9]+ were acknowledged", out)
	require.Contains(t, out, "hint: sluice store restore BACKUP --data "+dir)

	out, err = sluice(t, "store", "restore", backup, "--data", dir)
	require.NoError(t, err, out)
	s = startServe(t, dir)
	s.check(t, in)
	revision, err := s.apply("version: 1\nrules: []\n")
	require.NoError(t, err)
	for given := range acknowledged {
		require.Greater(t, revision, given, "no number is given twice")
	}
	require.NoError(t, s.process.Signal(syscall.SIGTERM))
	_, err = s.process.Wait()
	require.NoError(t, err)
}

// TestFullDisk bounds the size of serve's files, which is what a full disk is to
// it: nothing more is acknowledged, what was is there, and serve is healthy again
// once there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startServe(t, dir, "sh", "-c", `ulimit -S -f 2048; exec "$@"`, "sh")
	acknowledged := map[int]string{}
	fill := func() {
		t.Helper()
		var err error
		for err == nil {
			require.Less(t, len(acknowledged), 1000)
			text := fmt.Sprintf("version: 1\ndomain: d-%d\nrules: []\n%s", len(acknowledged), padding(6))
			var revision int
			if revision, err = s.apply(text); err == nil {
				acknowledged[revision] = text
			}
		}
		require.ErrorContains(t, err, "500")
		require.Equal(t, http.StatusInternalServerError, s.healthCode(t))
		s.check(t, acknowledged)
	}
	fill()
	out, err := sluice(t, "store", "backup", "-o", filepath.Join(t.TempDir(), "b"), "--server", s.url)
	require.NoError(t, err, out)
	fill() // pages may have become free since
	var room unix.Rlimit
	require.NoError(t, unix.Prlimit(s.process.Pid, unix.RLIMIT_FSIZE, nil, &room))
	room.Cur = room.Max
	require.NoError(t, unix.Prlimit(s.process.Pid, unix.RLIMIT_FSIZE, &room, nil))
	require.Eventually(t, func() bool { return s.healthCode(t) == http.StatusOK }, patience, 100*time.Millisecond)
	s.check(t, acknowledged)
	require.NoError(t, s.process.Kill())
	_, _ = s.process.Wait()
	s = startServe(t, dir)
	s.check(t, acknowledged)
	revision, err := s.apply("version: 1\nrules: []\n")
	require.NoError(t, err)
	require.Greater(t, revision, len(acknowledged))
	require.Equal(t, http.StatusOK, s.healthCode(t))
}

func (s server) healthCode(t *testing.T) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/healthz", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	return response.StatusCode
}

// TestBackupThatIsCutOff has a server that goes away in the middle.
func TestBackupThatIsCutOff(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		_, _ = w.Write(make([]byte, 5000))
	}))
	defer s.Close()
	dir := t.TempDir()
	out, err := sluice(t, "store", "backup", "-o", filepath.Join(dir, "sluice.backup"), "--server", s.URL)
	require.Error(t, err)
	require.Contains(t, out, "error: write backup: unexpected EOF")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
