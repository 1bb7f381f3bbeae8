package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

var statusTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestStatusTable(t *testing.T) {
	long := strings.Repeat("é\n", 250)
	var out strings.Builder
	require.NoError(t, printStatus(&out, &api.Status{
		Current: &store.Summary{Number: 1, File: "one.yaml", Created: statusTime},
		Newest:  &store.Summary{Number: 2, File: "two.yaml", Created: statusTime, Nacked: true},
		Proxies: []xds.ProxyStatus{
			{Proxy: store.Proxy{Node: "edge-1"}, Since: statusTime, State: "connected", Runs: 1, Pushed: 1, Envoy: "1.40.0"},
			{
				Proxy: store.Proxy{Node: "edge-2", Nacked: 2, NackedAt: statusTime, NackText: long},
				Since: statusTime, State: "refused revision 2, " + long,
			},
			{Proxy: store.Proxy{Node: strings.Repeat("n", 300)}, Since: statusTime, State: "connected"},
		},
	}))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 6, "one line a proxy")
	require.Equal(t, "revision 1  one.yaml  applied 2026-01-02 03:04:05Z", lines[0])
	require.Equal(t, "revision 2  two.yaml  applied 2026-01-02 03:04:05Z, refused: not current", lines[1])
	header, _, _ := strings.Cut(lines[2], "SINCE")
	since := len([]rune(header))
	for _, line := range lines[3:] {
		require.Less(t, len([]rune(line)), 450)
		require.Equal(t, "2026-01-02", string([]rune(line)[since:since+10]), "columns stay aligned")
	}
	require.True(t, strings.HasSuffix(lines[4], "…"), lines[4])
}

// statusServer answers like serve, with how many proxies it is told.
func statusServer(t *testing.T) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	proxies := new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Status{Proxies: make([]xds.ProxyStatus, proxies.Load())})
	}))
	t.Cleanup(s.Close)
	return s, proxies
}

// watching runs status --watch until it has printed so many lines.
func watching(t *testing.T, lines int64, then func(stop func()), args ...string) (out string, err error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	w := &lineCounter{}
	go func() {
		for w.lines.Load() < lines && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		then(stop)
	}()
	root := NewRootCommand()
	root.SetArgs(append([]string{"status", "--watch"}, args...))
	root.SetOut(w)
	err = root.ExecuteContext(ctx)
	return w.text.String(), err
}

type lineCounter struct {
	text  strings.Builder
	lines atomic.Int64
}

func (l *lineCounter) Write(text []byte) (int, error) {
	l.text.Write(text)
	l.lines.Add(int64(strings.Count(string(text), "\n")))
	return len(text), nil
}

func TestWatchStatus(t *testing.T) {
	s, proxies := statusServer(t)
	out, err := watching(t, 2, func(stop func()) {
		time.Sleep(watchEvery * 3 / 2) // a look that finds no change
		proxies.Store(1)
		time.Sleep(watchEvery * 3 / 2)
		stop()
	}, "--server", s.URL)
	require.NoError(t, err, "a signal ends it well")
	first, second, ok := strings.Cut(out, "\n\n")
	require.True(t, ok, out)
	require.Equal(t, "nothing has been applied yet\nno proxy is connected", first)
	require.Equal(t, 3, strings.Count(second, "\n"), "one block a change: %s", out)
	require.Contains(t, second, "PROXY ")
}

func TestWatchStatusOfAServerThatGoesAway(t *testing.T) {
	s, _ := statusServer(t)
	out, err := watching(t, 1, func(func()) { s.CloseClientConnections(); s.Close() }, "--server", s.URL, "--output", "json")
	require.ErrorContains(t, err, "reach server "+s.URL)
	require.True(t, json.Valid([]byte(out)), out)
}
