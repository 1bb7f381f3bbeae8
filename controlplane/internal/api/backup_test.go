package api

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func TestBackup(t *testing.T) {
	f := newFixture(t, "")
	f.json(http.MethodPost, "/v1/policies", good, http.StatusCreated, &Applied{})
	s := &server{Options: Options{Store: f.store, XDS: f.xds, Log: slog.New(slog.DiscardHandler)}, backups: newTurn(50 * time.Millisecond)}
	ctx := access.NewContext(t.Context(), access.Caller{Name: "alice", Address: "192.0.2.7", Role: access.Admin})
	asked := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/backup", nil)
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.needs(route{role: access.Admin, handle: s.backup})(w, asked)
		return w
	}
	free, err := s.backups.take(t.Context())
	require.NoError(t, err)
	busy := get()
	require.Equal(t, http.StatusServiceUnavailable, busy.Code)
	require.Equal(t, "30", busy.Header().Get("Retry-After"))
	free()

	newest := func() store.Entry {
		list, err := f.store.Audit(t.Context(), "", 1, 0)
		require.NoError(t, err)
		return list[0]
	}
	require.Equal(t, "apply", newest().Action, "none was taken")

	whole := get()
	require.Equal(t, http.StatusOK, whole.Code)
	require.Equal(t, strconv.Itoa(whole.Body.Len()), whole.Header().Get("Content-Length"))
	file := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.WriteFile(file, whole.Body.Bytes(), 0o600))
	c, err := store.Check(file)
	require.NoError(t, err)
	require.Equal(t, store.Contents{Revisions: 1, Newest: 1, Given: 1}, c)
	require.Equal(t, "backup", newest().Action)
	require.Equal(t, "alice", newest().Who)
	require.Equal(t, "192.0.2.7", newest().From)
	require.Equal(t, fmt.Sprintf("sent %d bytes", whole.Body.Len()), newest().Outcome)

	require.NoError(t, s.backup(&cutOff{ResponseRecorder: httptest.NewRecorder(), entry: newest}, &request{Request: asked}))
	require.Equal(t, "sent 1000 of "+strconv.Itoa(whole.Body.Len())+" bytes", newest().Outcome)

	// What cannot be written down is not handed out.
	s.Store = recorder{f.store, &managedFixture{fixture: f, broken: true}}
	refused := get()
	require.Equal(t, http.StatusInternalServerError, refused.Code)
	require.Contains(t, refused.Body.String(), "disk is full")
}

// cutOff is a caller that goes away after a thousand bytes.
type cutOff struct {
	*httptest.ResponseRecorder
	entry func() store.Entry
}

func (c *cutOff) Write(text []byte) (int, error) {
	if e := c.entry(); e.Action != "backup" || e.Outcome != "" {
		return 0, fmt.Errorf("not recorded before the first byte: %+v", e)
	}
	return min(len(text), 1000), io.ErrClosedPipe
}
