package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

const (
	defaultWait = 30 * time.Second
	// MaxWait is the longest wait for the proxies' answers.
	MaxWait = 10 * time.Minute
)

// Status answers GET /v1/status.
type Status struct {
	Current *store.Summary    `json:"current"`           // null before the first apply
	Damaged []uint64          `json:"damaged,omitempty"` // revisions in the store, which are not pushed
	Proxies []xds.ProxyStatus `json:"proxies"`
}

// status handles GET /v1/status.
func (s *server) status(w http.ResponseWriter, r *http.Request) {
	list, err := s.store.History(r.Context(), 1)
	if err != nil {
		s.failStore(w, r, err)
		return
	}
	st := Status{Damaged: s.xds.Ledger().Damaged(), Proxies: s.xds.Ledger().Proxies()}
	if len(list) > 0 {
		st.Current = &list[0]
	}
	s.answerLarge(w, len(st.Proxies)*1024, st)
}

// WaitEvent is one line of GET /v1/revisions/{revision}/wait: a proxy's
// verdict, or, as the last one, that the wait is over.
type WaitEvent struct {
	Outcome *xds.ProxyOutcome  `json:"verdict,omitempty"`
	Done    bool               `json:"done,omitempty"`
	Missing []xds.ProxyOutcome `json:"missing,omitempty"` // with Done: who has not answered in time
}

// wait handles GET /v1/revisions/{revision}/wait?timeout=30s. It writes the
// verdict of every connected proxy, one JSON object a line, as it comes.
func (s *server) wait(w http.ResponseWriter, r *http.Request) {
	number, err := s.number(r)
	if err != nil {
		s.failNumber(w, r, err)
		return
	}
	query, err := readQuery(r, "timeout")
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	timeout := defaultWait
	if text := query.get("timeout"); text != "" {
		if timeout, err = time.ParseDuration(text); err != nil || timeout <= 0 || timeout > MaxWait {
			fail(w, http.StatusBadRequest, fmt.Errorf("timeout %s is not a duration above 0 and up to %s", shown(text), MaxWait))
			return
		}
	}
	if _, err := s.store.Get(r.Context(), number); err != nil {
		s.failStore(w, r, err)
		return
	}
	control := http.NewResponseController(w)
	if err := control.SetWriteDeadline(time.Now().Add(timeout + 10*time.Second)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		fail(w, http.StatusInternalServerError, fmt.Errorf("set write deadline: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	_ = control.Flush()
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	lines := json.NewEncoder(w)
	write := func(e WaitEvent) {
		_ = lines.Encode(e) // the caller has gone if this fails; so ends ctx
		_ = control.Flush()
	}
	missing := s.xds.Ledger().Follow(ctx, number, func(v xds.ProxyOutcome) { write(WaitEvent{Outcome: &v}) })
	// The server is stopping or the caller has gone: no end is written, for
	// the wait did not come to one.
	if r.Context().Err() != nil {
		return
	}
	write(WaitEvent{Done: true, Missing: missing})
}
