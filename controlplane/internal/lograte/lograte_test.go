package lograte

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLimit(t *testing.T) {
	var l Limit
	now := time.Now()
	omitted, ok := l.Take(now)
	require.True(t, ok)
	require.Zero(t, omitted)
	for range 1000 {
		_, ok = l.Take(now.Add(interval - 1))
		require.False(t, ok)
	}
	omitted, ok = l.Take(now.Add(interval))
	require.True(t, ok)
	require.Equal(t, 1000, omitted)
	omitted, ok = l.Take(now.Add(2 * interval))
	require.True(t, ok)
	require.Zero(t, omitted)
}

func TestLogger(t *testing.T) {
	var text bytes.Buffer
	l := NewLogger(slog.New(slog.NewTextHandler(&text, nil)))
	for range 100 {
		l.Printf("http: TLS handshake error from %s: EOF", "192.0.2.1:1")
	}
	require.Equal(t, 1, strings.Count(text.String(), "\n"), "%s", &text)
	require.Contains(t, text.String(), `level=WARN msg="http: TLS handshake error from 192.0.2.1:1: EOF" omitted=0`)
}
