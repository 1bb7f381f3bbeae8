package e2e

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// Clients that leave before their answer: what it costs, and how long they keep a slot.
func TestFieldsOfClientsThatLeave(t *testing.T) {
	t.Parallel()
	const policy = `
version: 1
` + managed + `rules:
  - {name: free, match: {paths: [/free]}, limits: [9/` + far + `], settle: {when: {no_answer: false}}}
  - {name: charged, match: {paths: [/charged]}, limits: [9/` + far + `], settle: {}}
  - {name: stays, match: {paths: [/stays]}, algorithm: concurrency, limits: [{requests: 1, name: slots}], linger: 1m}
  - {name: goes, match: {paths: [/goes]}, algorithm: concurrency, limits: [{requests: 1}], linger: 0s}
`
	upstream := startAnswering(t)
	p := newest(t).start(t, proxyOptions{policy: policy, upstream: upstream.URL})
	c := newClients(t, p.address, upstream)
	for _, path := range []string{"/free", "/charged", "/stays", "/goes"} {
		require.Zero(t, c.visit(t.Context(), &visit{leaves: before}, path, path, time.Second))
	}
	require.Zero(t, used(t, p, "free"))
	require.EqualValues(t, 1, used(t, p, "charged"))
	eventually(t, 5*time.Second, "a slot without linger", func() bool { return p.status(t, "/goes") == allowed })
	require.Equal(t, denied, p.status(t, "/stays"))
	require.Equal(t, "slots", p.operate(t, "get", "rule=stays").Windows[0].Name)
}

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
