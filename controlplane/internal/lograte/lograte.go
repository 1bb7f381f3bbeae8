// Package lograte keeps callers from filling the log.
//
// Its invariant: the loggers of one Limit write a burst of lines and then one a
// second, or one in another time, and a line says how many were left out since the one before.
package lograte

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limit bounds the lines of all its loggers together.
type Limit struct {
	lines   *rate.Limiter
	omitted atomic.Uint64 // since the last line that was written
}

// NewLimit allows so many lines at once.
func NewLimit(burst int) *Limit { return &Limit{lines: rate.NewLimiter(1, burst)} }

// NewEvery allows one line in that time.
func NewEvery(d time.Duration) *Limit { return &Limit{lines: rate.NewLimiter(rate.Every(d), 1)} }

// Logger returns a bounded logger that writes to another one.
func (l *Limit) Logger(to *slog.Logger) *slog.Logger { return slog.New(handler{to.Handler(), l}) }

type handler struct {
	slog.Handler
	limit *Limit
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, line slog.Record) error {
	if !h.limit.lines.AllowN(line.Time, 1) {
		h.limit.omitted.Add(1)
		return nil
	}
	if n := h.limit.omitted.Swap(0); n > 0 {
		line.Add("omitted", n)
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.limit}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.limit}
}
