// Package lograte keeps callers from filling the log.
//
// Its invariant: of what a Limit guards, at most one line a second is written,
// and each line says how many were left out since the one before.
package lograte

import (
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// interval is the least time between two lines.
const interval = time.Second

// Limit guards lines of one kind. The zero Limit is ready; it is safe for
// concurrent use.
type Limit struct {
	mu      sync.Mutex
	next    time.Time // when the next line may be written
	omitted int       // since the last one
}

// Take says whether a line may be written now, and how many were left out since
// the last one.
func (l *Limit) Take(now time.Time) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		l.omitted++
		return 0, false
	}
	omitted, l.next, l.omitted = l.omitted, now.Add(interval), 0
	return omitted, true
}

// NewLogger returns a logger for net/http's errors, which any caller can cause.
func NewLogger(to *slog.Logger) *log.Logger { return log.New(&writer{to: to}, "", 0) }

type writer struct {
	limit Limit
	to    *slog.Logger
}

func (w *writer) Write(line []byte) (int, error) {
	if omitted, ok := w.limit.Take(time.Now()); ok {
		w.to.Warn(strings.TrimSpace(string(line)), "omitted", omitted)
	}
	return len(line), nil
}
