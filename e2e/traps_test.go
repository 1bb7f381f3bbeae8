//go:build long

package e2e

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

const (
	// trapBackoff is the longest that Envoy lets a failed VM be after its last start.
	trapBackoff = 1500 * time.Millisecond
	trapPause   = time.Second     // of a rule's requests that the quota service does not answer
	trapIdle    = 3 * time.Second // stream_idle_timeout
)

// A VM that has trapped is made anew by the next request that comes a second to a second
// and a half after the VM's last start. Until then its worker answers 503. What is counted
// stays counted, in sluice run as in Envoy.
func TestReloadAfterATrap(t *testing.T) {
	t.Parallel()
	wasm := buildtest.Filter(t, "sluice_faults")
	everyProxy(t, func(t *testing.T, d driver) {
		p := d.start(t, proxyOptions{wasm: wasm, workers: 1,
			policy: "version: 1\nrules: [{name: all, match: {paths: [/all]}, limits: [5/" + far + "]}]\n"})
		made := p.vmStarts(t)
		for i, step := range []struct {
			after time.Duration
			fault string
			want  int
		}{
			{trapBackoff, "panic", http.StatusServiceUnavailable},
			{0, "", allowed},
			{0, "panic-counted", http.StatusServiceUnavailable},
			{0, "", http.StatusServiceUnavailable},
			{trapBackoff, "", allowed},
			{0, "", allowed},
			{0, "", allowed},
			{0, "", denied},
		} {
			time.Sleep(step.after)
			require.Equal(t, step.want, p.status(t, "/all", "x-fault", step.fault), "step %d", i)
		}
		success, failure, backoff := p.reloads(t)
		require.Equal(t, []int{2, 0, 1}, []int{success, failure, backoff})
		require.Equal(t, made+2, p.vmStarts(t))
		require.Contains(t, p.log(), "panic: planted")
	})
}

// reloads returns how often a failed VM was made anew, failed to start, and was left as it
// was.
func (p *proxy) reloads(t *testing.T) (success, failure, backoff int) {
	text := p.prometheus(t)
	for name, n := range map[string]*int{"success": &success, "failure": &failure, "backoff": &backoff} {
		m := regexp.MustCompile(`(?m)^envoy_wasm_sluice_vm_reload_` + name + `(?:\{\})? (\d+)$`).FindStringSubmatch(text)
		require.NotNil(t, m, name)
		*n, _ = strconv.Atoi(m[1])
	}
	return success, failure, backoff
}

// vmStarts returns how many VMs of the filter there have been, by the filter's own count.
func (p *proxy) vmStarts(t *testing.T) int {
	m := regexp.MustCompile(`(?m)^rate_limit_vm_starts_total(?:\{\})? (\d+)$`).FindStringSubmatch(p.prometheus(t))
	require.NotNil(t, m)
	n, _ := strconv.Atoi(m[1])
	return n
}

// trapRig is an Envoy of four workers that have as many connections each. Its filter traps
// where a request says so.
type trapRig struct {
	*waitingRig
	passed atomic.Int64 // requests that have reached the upstream
}

const trapPolicy = `
version: 1
quota: {timeout: 1s}
` + managed + `rules:
  - {name: counted, match: {paths: [/counted]}, limits: [8000/` + far + `]}
  - {name: waits, match: {paths: [/waits]}, scope: cluster, on_unavailable: deny, key: [{header: x-user-id}],
     limits: [1/` + far + `]}
  - {name: leased, match: {paths: [/leased]}, scope: cluster, on_unavailable: deny, limits: [400/` + far + `]}
`

func newTrapRig(t *testing.T, d driver) *trapRig {
	r := &trapRig{waitingRig: &waitingRig{service: startQuota(t, quotaMemory)}}
	r.gate = newGate(t, r.service.address)
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		if in.URL.Path == "/counted" {
			r.passed.Add(1)
			time.Sleep(2 * time.Millisecond) // so that some are there when a VM ends
		}
		_, _ = w.Write([]byte("hello\n"))
	}))
	t.Cleanup(behind.Close)
	r.proxy = d.start(t, proxyOptions{
		wasm: buildtest.Filter(t, "sluice_faults"), workers: 4, quota: r.gate.address(), upstream: behind.URL,
		policy: trapPolicy,
		edit:   idleAfter(trapIdle),
	})
	return r
}

// idleAfter has Envoy end streams that a trap has left paused.
func idleAfter(idle time.Duration) func(bootstrap []byte) []byte {
	return func(bootstrap []byte) []byte {
		const place = "use_remote_address: true"
		return replacing(place, "stream_idle_timeout: "+idle.String()+"\n          "+place)(spread(bootstrap))
	}
}

// A trap ends the requests of one worker, for a second or a second and a half at most. It
// costs no counter a unit, and processor time neither where each request traps.
func TestTraps(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		r := newTrapRig(t, d)
		t.Run("around 10,000 requests", r.underLoad)
		t.Run("while requests wait", r.whileRequestsWait)
		t.Run("at each request", r.atEachRequest)
	})
}

const trapConnections = 16

// Of two traps in a row, the first finds a VM that is old enough to be made anew at once. The
// second is backed off from: TestReloadAfterATrap shows for how long.
func (r *trapRig) underLoad(t *testing.T) {
	const n, limit, pace, first, second = 10_000, 8000, 8 * time.Millisecond, 200, 202
	at := make([]time.Time, n)
	got := r.load(trapConnections).send(t, n, func(i int) request {
		time.Sleep(pace)
		at[i] = time.Now()
		switch i {
		case first * trapConnections:
			return request{"/counted", "x-fault", "panic"}
		case second * trapConnections:
			return request{"/counted", "x-fault", "panic-counted"}
		}
		return request{"/counted", "", ""}
	})
	const failed = http.StatusServiceUnavailable
	require.Equal(t, n, count(got, allowed)+count(got, denied)+count(got, failed))
	require.EqualValues(t, limit, r.operate(t, "get", "rule=counted").Value)
	require.EqualValues(t, limit-1, r.passed.Load(), "all but the one that trapped when it was counted")
	require.LessOrEqual(t, count(got, allowed), limit-1)
	require.GreaterOrEqual(t, count(got, allowed), limit-1-2*trapConnections/4,
		"some were at the upstream when their VM ended")

	trapped, out := map[int]bool{}, time.Duration(0) // connections
	for i, status := range got {
		if status == failed {
			trapped[i%trapConnections], out = true, max(out, at[i].Sub(at[first*trapConnections]))
		}
	}
	for i := trapConnections; i < n; i++ {
		require.True(t, trapped[i%trapConnections] || at[i].Sub(at[i-trapConnections]) < time.Second+pace,
			"other workers go on")
	}
	require.Zero(t, count(got[n-trapConnections:], failed), "the worker serves again")
	require.LessOrEqual(t, len(trapped), trapConnections/4+1, "connections of one worker")
	require.Greater(t, out, time.Second/2, "the second trap was backed off from")
	require.Less(t, out, trapBackoff+faultSlack())
	success, failure, backoff := r.reloads(t)
	require.Equal(t, []int{2, 0}, []int{success, failure})
	require.Positive(t, backoff)
	require.Contains(t, r.log(), "Function: proxy_on_request_headers failed: Uncaught RuntimeError: unreachable")
	t.Logf("%s: %d connections failed for %s; %d allowed, %d of them lost at the upstream",
		t.Name(), len(trapped), out, count(got, allowed), limit-1-count(got, allowed))
}

// Nothing but stream_idle_timeout ends a request that waits for a failed VM.
func (r *trapRig) whileRequestsWait(t *testing.T) {
	leased := func() int {
		return count(r.load(trapConnections).send(t, 320, func(int) request { return request{"/leased", "", ""} }), allowed)
	}
	before := leased()
	got := r.during(t, 64, r.gate.hold, func() {
		require.Equal(t, http.StatusServiceUnavailable, r.status(t, "/", "x-fault", "panic", "connection", "close"))
	})
	failed := got.count(http.StatusServiceUnavailable)
	require.Equal(t, 64, failed+got.count(denied))
	require.InDelta(t, 64/4, failed, 3, "those of one worker")
	var ended, answered time.Duration
	for _, e := range got.all {
		if took := time.Duration(e.until - e.from); e.status == denied {
			answered = max(answered, took)
		} else {
			ended = max(ended, took)
		}
	}
	require.Less(t, answered, trapPause+20*time.Millisecond+faultSlack())
	require.Less(t, ended, trapIdle+20*time.Millisecond+faultSlack())
	r.recover(t)
	all := before + leased()
	require.LessOrEqual(t, all, 400, "what the VM had leased and was to give back stays counted")
	t.Logf("%s: %d of 64 waiting requests ended after %s, the others were answered within %s; "+
		"%d of 400 units leased were lost",
		t.Name(), failed, ended, answered, 400-all)
}

func (r *trapRig) atEachRequest(t *testing.T) {
	const n, pace = 3200, 25 * time.Millisecond
	cost := func(fault string) (cpu, took time.Duration, failed int) {
		began := time.Now()
		before, err := r.envoy.CPU()
		require.NoError(t, err)
		got := r.load(trapConnections).send(t, n, func(int) request {
			time.Sleep(pace)
			return request{"/counted", "x-fault", fault}
		})
		after, err := r.envoy.CPU()
		require.NoError(t, err)
		return after - before, time.Since(began), count(got, http.StatusServiceUnavailable)
	}
	vms := func() uint64 {
		stats, err := r.envoy.Stats(t.Context(), `^wasm\.envoy\.wasm\.runtime\.v8\.active$`)
		require.NoError(t, err)
		return stats["wasm.envoy.wasm.runtime.v8.active"]
	}
	former, _, _ := r.reloads(t)
	running, resident := vms(), r.resident(t)
	cpu, took, failed := cost("panic")
	require.Equal(t, n, failed)
	success, _, _ := r.reloads(t)
	success -= former
	require.LessOrEqual(t, success, 4*int(took/time.Second+1), "one a second and worker")
	require.Less(t, cpu, took/2)
	time.Sleep(trapBackoff)
	usual, _, failed := cost("")
	require.Zero(t, failed, "all workers serve again")
	require.Equal(t, running, vms(), "failed VMs are freed")
	t.Logf("%s: %d requests that trapped took %s of processor time in %s, for %d VMs made anew; "+
		"without traps %s; resident memory %+d KiB",
		t.Name(), n, cpu, took, success, usual, (r.resident(t)-resident)>>10)
}
