package api

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func TestBackup(t *testing.T) {
	f := newFixture(t, "")
	f.json(http.MethodPost, "/v1/policies", good, http.StatusCreated, &Applied{})
	s := &server{store: f.store, xds: f.xds, log: slog.New(slog.DiscardHandler)}
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.backup(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/backup", nil))
		return w
	}
	s.backups.Lock()
	busy := get()
	require.Equal(t, http.StatusServiceUnavailable, busy.Code)
	require.NotEmpty(t, busy.Header().Get("Retry-After"))
	s.backups.Unlock()

	whole := get()
	require.Equal(t, http.StatusOK, whole.Code)
	require.Equal(t, strconv.Itoa(whole.Body.Len()), whole.Header().Get("Content-Length"))
	file := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.WriteFile(file, whole.Body.Bytes(), 0o600))
	c, err := store.Check(file)
	require.NoError(t, err)
	require.Equal(t, store.Contents{Revisions: 1, Newest: 1, Given: 1}, c)
}
