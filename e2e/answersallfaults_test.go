//go:build long

package e2e

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

const (
	// each proxy has a third of the clients, and each of their requests may hold 5 units: they
	// are charged in full where nobody sees the answers.
	lostUnits = 60 / 3 * 5
	// lateRequests is how many requests a proxy sends on at most that it had decided when it was
	// stopped, while others have their slots by now: one a worker.
	lateRequests = workers
)

// trapped is what the requests of a VM that has trapped end with, some of them only when they
// have been idle for long.
var trapped = []int{http.StatusServiceUnavailable, http.StatusGatewayTimeout}

var answersMishaps = []mishap{
	{name: "Redis is killed and starts with its data", here: true, lasts: 12 * time.Second, judged: 7 * time.Second, least: 0.6, happen: func(_ *testing.T, f *answersFleet) {
		f.store.Kill()
		time.Sleep(1500 * time.Millisecond)
		f.store.Restart()
	}},
	{name: "the VMs of an Envoy trap", lasts: 19 * time.Second, judged: 4*time.Second + lostFor, least: 0.6, lost: lostUnits, may: trapped, happen: func(t *testing.T, f *answersFleet) {
		for range workers { // each has as many connections
			client := &http.Client{Transport: &http.Transport{}}
			t.Cleanup(client.CloseIdleConnections)
			require.Equal(t, http.StatusServiceUnavailable, get(client, f.proxies[0], "/flight", "x-fault", "panic-counted"))
		}
	}},
	{name: "an Envoy is stopped for less than the hold", lasts: 12 * time.Second, judged: 8 * time.Second, least: 0.6, happen: standStill(4 * time.Second)},
	{name: "an Envoy is stopped for longer than the hold", lasts: 20 * time.Second, judged: 16 * time.Second, least: 0.6, over: lateRequests, lost: lostUnits, happen: standStill(12 * time.Second)},
}

func standStill(lasts time.Duration) func(t *testing.T, f *answersFleet) {
	return func(t *testing.T, f *answersFleet) {
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGSTOP))
		time.Sleep(lasts)
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGCONT))
	}
}

// TestAnswersFaultsOverAllProxies: whatever happens to one of three Envoys or to their store,
// no more requests run at once than the limit and what a stopped proxy sends late, the slots
// come back, and each answer is charged, once or, where it was lost, in full.
func TestAnswersFaultsOverAllProxies(t *testing.T) {
	t.Parallel()
	wasm := buildtest.Filter(t, "sluice_faults")
	eachEnvoy(t, func(t *testing.T, d driver) {
		f := startAnswersFleet(t, d, wasm)
		for _, m := range answersMishaps {
			t.Run(m.name, func(t *testing.T) { f.fly(t, &m) })
		}
	})
}
