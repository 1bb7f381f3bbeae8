package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFullDisk bounds the size of serve's files, which is what a full disk is to
// it: nothing more is acknowledged, what was is there, and serve is healthy again
// once there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startWith(t, "ulimit -S -f 2048; ", dir)
	acknowledged := map[int]string{}
	fill := func() {
		t.Helper()
		var err error
		for err == nil {
			require.Less(t, len(acknowledged), 1000)
			text := fmt.Sprintf("version: 1\ndomain: d-%d\nrules: []\n", len(acknowledged))
			text += strings.Repeat("# padding\n", 6000)
			var revision int
			revision, err = s.apply(text)
			if err == nil {
				acknowledged[revision] = text
			}
		}
		require.ErrorContains(t, err, "500")
		require.Equal(t, http.StatusInternalServerError, s.code(t, "/healthz"))
		s.check(t, acknowledged)
	}
	fill()
	require.Equal(t, http.StatusOK, s.code(t, "/v1/backup"))
	fill() // pages may have become free since
	var room unix.Rlimit
	require.NoError(t, unix.Prlimit(s.process.Pid, unix.RLIMIT_FSIZE, nil, &room))
	room.Cur = room.Max
	require.NoError(t, unix.Prlimit(s.process.Pid, unix.RLIMIT_FSIZE, &room, nil))
	require.Eventually(t, func() bool { return s.code(t, "/healthz") == http.StatusOK }, patience, 100*time.Millisecond)
	s.check(t, acknowledged)
	require.NoError(t, s.process.Kill())
	_, _ = s.process.Wait()
	s = startServe(t, dir)
	s.check(t, acknowledged)
	revision, err := s.apply("version: 1\nrules: []\n")
	require.NoError(t, err)
	require.Greater(t, revision, len(acknowledged))
	require.Equal(t, http.StatusOK, s.code(t, "/healthz"))
}

func (s server) code(t *testing.T, path string) int {
	t.Helper()
	code, _, err := s.ask(t.Context(), http.MethodGet, path, "")
	require.NoError(t, err)
	return code
}

// check compares what is stored with what was acknowledged, revision by revision.
func (s server) check(t *testing.T, acknowledged map[int]string) {
	t.Helper()
	for revision, text := range acknowledged {
		var r struct{ YAML string }
		_, answer, err := s.ask(t.Context(), http.MethodGet, fmt.Sprint("/v1/policies/", revision), "")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(answer, &r))
		require.Equal(t, text, r.YAML, "revision %d", revision)
	}
}
