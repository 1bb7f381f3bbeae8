package api

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// One backup is sent at a time, and written down before. The script store.txtar has what is in it.
func TestOneBackupIsSentAtATime(t *testing.T) {
	f := newFixture(t, "")
	f.json(http.MethodPost, "/v1/policies", good, http.StatusCreated, &Applied{})
	o := Options{Store: f.store, XDS: f.xds, Log: slog.New(slog.DiscardHandler)}
	s := &server{Options: o, backups: newTurn(50 * time.Millisecond)}
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
	size := strconv.Itoa(whole.Body.Len())
	require.Equal(t, []any{http.StatusOK, size}, []any{whole.Code, whole.Header().Get("Content-Length")})
	got := newest()
	require.Equal(t, store.Entry{
		ID: 2, At: got.At, Who: "alice", From: "192.0.2.7", Action: "backup", Outcome: "sent " + size + " bytes",
	}, got)
	leaves := &cutOff{ResponseRecorder: httptest.NewRecorder(), entry: newest}
	require.NoError(t, s.backup(leaves, &request{Request: asked}))
	require.Equal(t, "sent 1000 of "+size+" bytes", newest().Outcome)

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
