package manage

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/proctest"
)

func newFleet(own ...netip.AddrPort) *Fleet {
	loopback, _ := ParseAllow(DefaultAllow)
	return NewFleet(Reach{Allow: &loopback, Own: own}, func() Credentials { return Credentials{Token: secret} })
}

func begin(t *testing.T, f *Fleet) *Call {
	t.Helper()
	c, err := f.Begin(time.Minute)
	require.NoError(t, err)
	t.Cleanup(c.End)
	return c
}

// addresses are targets on one port and as many addresses of loopback.
func addresses(port string, n int) []Target {
	targets := make([]Target, n)
	for i := range targets {
		targets[i] = Target{Node: fmt.Sprint("edge-", i), URL: &url.URL{
			Scheme: "http", Host: fmt.Sprintf("127.1.%d.%d:%s", i/250, 1+i%250, port), Path: fmt.Sprintf("/%d/", i),
		}}
	}
	return targets
}

// everywhere serves on all addresses of loopback and returns the port.
func everywhere(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(answer)
	_ = s.Listener.Close()
	var err error
	s.Listener, err = net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	s.Start()
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return port
}

// At most so many proxies are asked at once, by all callers together, and each
// is asked once.
func TestFewAreAskedAtOnce(t *testing.T) {
	var now, peak, asked atomic.Int64
	port := everywhere(t, func(w http.ResponseWriter, _ *http.Request) {
		if n := now.Add(1); n > peak.Load() {
			peak.Store(n)
		}
		asked.Add(1)
		time.Sleep(2 * time.Millisecond)
		now.Add(-1)
		_, _ = w.Write([]byte(`{"value":2,"windows":[]}`))
	})
	f := newFleet()
	done := make(chan []Row, 2)
	for range 2 {
		call := begin(t, f)
		go func() {
			done <- call.Counters(t.Context(), addresses(port, 200), operation("get"), nil)
		}()
	}
	for range 2 {
		for i, r := range <-done {
			require.Empty(t, r.Error)
			require.Equal(t, fmt.Sprint("edge-", i), r.Proxy)
			require.EqualValues(t, 2, *r.Value)
		}
	}
	require.EqualValues(t, 400, asked.Load())
	require.LessOrEqual(t, peak.Load(), int64(maxAsked))
	require.Greater(t, peak.Load(), int64(1))
}

// A caller too many is told so, and proxies are asked no more for one that has gone.
func TestCallers(t *testing.T) {
	var asked atomic.Int64
	gone := make(chan struct{})
	port := everywhere(t, func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-r.Context().Done():
		case <-gone:
		}
	})
	f := newFleet()
	for range maxCalls - 1 {
		begin(t, f)
	}
	last, err := f.Begin(time.Minute)
	require.NoError(t, err)
	_, err = f.Begin(time.Minute)
	require.ErrorIs(t, err, ErrBusy)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []Row)
	go func() { done <- last.Counters(ctx, addresses(port, 500), operation("get"), nil) }()
	require.Eventually(t, func() bool { return asked.Load() == maxAsked }, 2*time.Minute, time.Millisecond)
	cancel()
	rows := <-done
	close(gone)
	require.EqualValues(t, maxAsked, asked.Load())
	for _, r := range rows {
		require.Contains(t, r.Error, "canceled")
	}
	last.End()
	last, err = f.Begin(time.Minute)
	require.NoError(t, err)
	last.End()
}

// Rows say why a proxy was not asked: it is serve itself, or another name of a
// listener that was asked.
func TestWhoIsNotAsked(t *testing.T) {
	var asked atomic.Int64
	u := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"value":2,"windows":[]}`))
	})
	named := *u
	named.Host = "localhost:" + u.Port()
	targets := []Target{{Node: "a", URL: u}, {Node: "b", URL: &named}, {Node: "c", Err: &Failure{"no", "do"}}}
	rows := begin(t, newFleet()).Counters(t.Context(), targets, operation("get"), nil)
	require.Contains(t, rows[0].Error+rows[1].Error, "is also that of ")
	require.Equal(t, "no do", rows[2].Error+" "+rows[2].Hint)
	require.EqualValues(t, 1, asked.Load())
	call := begin(t, newFleet(netip.MustParseAddrPort(u.Host)))
	rows = call.Counters(t.Context(), []Target{{Node: "a", URL: u}}, operation("get"), nil)
	require.Contains(t, rows[0].Error, "where sluice serve itself listens")
	require.EqualValues(t, 1, asked.Load())
}

const childPort = "SLUICE_TEST_MANAGE_PORT"

// hostile is how many proxies answer a client that is measured. The race detector needs
// few of them, and takes ten times as long for each.
func hostile() int {
	if proctest.Race {
		return 8
	}
	return 40
}

// Proxies that answer as much as they can take no memory that
// matters, and no honest proxy's row. The client is a process of its own, whose
// memory is measured.
func TestHostileAnswers(t *testing.T) {
	if port := os.Getenv(childPort); port != "" {
		askHostile(t, port)
		return
	}
	empty := `{"rules":[` + strings.Repeat(`{},`, maxAnswer/3-100) + `{}]}`
	one := fmt.Sprintf(`{"rule":%q,"metrics":{"a":1}},`, strings.Repeat("r", 1200))
	large := `{"rules":[` + strings.Repeat(one, 9_999) + strings.TrimSuffix(one, ",") + `]}`
	require.Less(t, len(large), maxAnswer)
	port := everywhere(t, func(w http.ResponseWriter, r *http.Request) {
		var i int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d/", &i)
		switch i % 4 {
		case 0:
			_, _ = w.Write([]byte(`{"rules":[{"rule":"honest"}]}`))
		case 1:
			_, _ = w.Write([]byte(empty))
		case 2:
			_, _ = w.Write([]byte(large))
		default:
			for {
				if _, err := w.Write([]byte(empty)); err != nil {
					return
				}
			}
		}
	})
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHostileAnswers$", "-test.v")
	status := filepath.Join(t.TempDir(), "status")
	child.Env = append(os.Environ(), childPort+"="+port, proctest.StatusInto(status), proctest.Collecting)
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	peak := proctest.Memory(t, status, proctest.Peak)
	t.Logf("at most %d MiB resident", peak>>20)
	proctest.Below(t, peak, 300<<20)
}

func askHostile(t *testing.T, port string) {
	t.Helper()
	rows := begin(t, newFleet()).Counters(t.Context(), addresses(port, hostile()), operation("stats"), nil)
	kept := 0
	for i, r := range rows {
		switch {
		case i%4 == 0:
			require.Empty(t, r.Error, "honest proxy %d", i)
			require.Equal(t, "honest", r.Stats[0].Rule)
		case r.Error == "":
			require.Equal(t, 2, i%4)
			kept++
		}
	}
	require.LessOrEqual(t, kept, maxKept>>20)
	proctest.SaveStatus()
}
