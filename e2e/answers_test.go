package e2e

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// logins is an upstream whose answer a request asks for, after a while.
type logins struct {
	*httptest.Server
	reached, running, most atomic.Int64
}

func startLogins(t *testing.T) *logins {
	l := &logins{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" {
			return
		}
		l.reached.Add(1)
		now := l.running.Add(1)
		defer l.running.Add(-1)
		for most := l.most.Load(); now > most && !l.most.CompareAndSwap(most, now); most = l.most.Load() {
		}
		time.Sleep(50 * time.Millisecond)
		status, _ := strconv.Atoi(r.Header.Get("answer"))
		w.WriteHeader(status)
	}))
	t.Cleanup(l.Close)
	return l
}

const failedLogins = `
version: 1
rules:
  - name: failed-logins
    match: {paths: [/login]}
    limits: [5/366d]
    settle: {when: {status: [401, 403]}}
`

// TestFailedLogins: of many logins at once that all fail, exactly as many reach the upstream
// as the limit has; those that succeed are not counted.
func TestFailedLogins(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		l := startLogins(t)
		p := d.start(t, proxyOptions{policy: failedLogins, upstream: l.URL})
		for range 3 { // of which none is counted
			statuses := p.load(5).send(t, 5, func(int) request { return request{"/login", "answer", "200"} })
			require.Equal(t, 5, count(statuses, 200))
		}
		require.EqualValues(t, 15, l.reached.Swap(0))
		statuses := p.load(100).send(t, 100, func(int) request { return request{"/login", "answer", "401"} })
		require.Equal(t, 5, count(statuses, 401))
		require.Equal(t, 95, count(statuses, 429))
		require.EqualValues(t, 5, l.reached.Load())
		require.LessOrEqual(t, l.most.Load(), int64(5))
		statuses = p.load(4).send(t, 20, func(int) request { return request{"/login", "answer", "200"} })
		require.Equal(t, 20, count(statuses, 429))
	})
}
