package lograte

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLoggersOfOneLimitShareIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		limit := NewLimit(3)
		a := limit.Logger(slog.New(slog.NewTextHandler(&text, nil)))
		b := limit.Logger(slog.New(slog.NewTextHandler(&text, nil)))
		written := func() []string {
			defer text.Reset()
			return strings.Split(strings.TrimSpace(text.String()), "\n")
		}
		for range 500 {
			a.Info("refused")
			b.With("who", "edge-1").WithGroup("g").Info("refused")
		}
		lines := written()
		require.Len(t, lines, 3)
		require.NotContains(t, lines[2], "omitted")
		time.Sleep(time.Second - time.Millisecond)
		a.Info("too soon")
		time.Sleep(time.Millisecond)
		a.Info("again")
		a.Info("too soon")
		lines = written()
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], "msg=again omitted=998")
		time.Sleep(time.Second)
		b.Info("again")
		require.Contains(t, text.String(), "msg=again omitted=1\n")
	})
}
