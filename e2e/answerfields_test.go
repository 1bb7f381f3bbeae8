package e2e

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// A slot whose VM has ended comes back after the hold, one of a request that runs for too long
// after max_hold.
func TestFieldHold(t *testing.T) {
	t.Parallel()
	const policy = `
version: 1
rules:
  - {name: lost, match: {paths: [/lost]}, algorithm: concurrency, limits: [1], hold: 10s}
  - {name: long, match: {paths: [/long]}, algorithm: concurrency, limits: [1]}
  - {name: runs, match: {paths: [/runs]}, algorithm: concurrency, limits: [1], hold: 10s, max_hold: 10s}
  - {name: keeps, match: {paths: [/keeps]}, algorithm: concurrency, limits: [1], hold: 10s}
`
	upstream := startAnswering(t)
	p := newest(t).start(t, proxyOptions{
		policy: policy, upstream: upstream.URL, workers: 1, wasm: buildtest.Filter(t, "sluice_faults"),
		edit: replacing("route: {cluster: upstream", "route: {timeout: 0s, cluster: upstream"),
	})
	over := make(chan struct{}) // of the requests
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(over)
	run := func(path string) {
		arrived := make(chan struct{})
		defer upstream.onArrival(path, func() { close(arrived); <-over })()
		wg.Go(func() { _, _, _ = p.try(path, "x-id", path) })
		<-arrived
		require.Equal(t, denied, p.status(t, path))
	}
	run("/lost")
	run("/long")
	require.Equal(t, http.StatusServiceUnavailable, p.status(t, "/", "x-fault", "panic"))
	eventually(t, 10*time.Second, "another VM", func() bool { return p.status(t, "/") == allowed })
	lost := time.Now()
	require.Equal(t, denied, p.status(t, "/lost"))
	run("/runs")
	run("/keeps")
	for path, after := range map[string]time.Duration{"/lost": 7 * time.Second, "/runs": 17 * time.Second} {
		for time.Since(lost) < after {
			require.Equal(t, denied, p.status(t, path), path)
			time.Sleep(300 * time.Millisecond)
		}
		eventually(t, 15*time.Second, path+" to be free", func() bool { return p.status(t, path) == allowed })
	}
	require.Equal(t, denied, p.status(t, "/long"))
	require.Equal(t, denied, p.status(t, "/keeps"))
}
