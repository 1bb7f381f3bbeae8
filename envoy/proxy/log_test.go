package proxy_test

import (
	"log/slog"
	"strings"
	"sync"
)

// syncBuffer is a log that is read while others write.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// count says how often the log holds a text.
func (b *syncBuffer) count(text string) int { return strings.Count(b.String(), text) }
