//go:build long

package e2e

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// lostFor is the longest that a lost slot is taken, of a hold of 10 s, and until it is used.
const lostFor = 10*time.Second*9/8 + time.Second

// TestAnswersFaults: whatever happens to a proxy under load, never more than so many requests
// are at the upstream, and slots that are lost come back. Envoy ends connections after 20 s.
func TestAnswersFaults(t *testing.T) {
	t.Parallel()
	eachEnvoy(t, func(t *testing.T, d driver) {
		rig := func(t *testing.T) *answerRig {
			t.Parallel()
			return newAnswerRig(t, d, proxyOptions{policy: edgesPolicy, wasm: buildtest.Filter(t, "sluice_faults"),
				edit: replacing("common_http_protocol_options: {", "common_http_protocol_options: {max_connection_duration: 20s, ")})
		}
		t.Run("first", func(t *testing.T) {
			r := rig(t)
			t.Run("clients' connections break", r.connectionsBreak)
			t.Run("it stands still", r.standsStill)
		})
		t.Run("second", func(t *testing.T) {
			r := rig(t)
			t.Run("a VM traps", r.vmTraps)
			t.Run("it is killed", func(t *testing.T) { r.killed(t, d) })
		})
	})
}

// during runs a load for so long, and then, a fault of it, after three seconds.
func (r *answerRig) during(t *testing.T, visits []visit, lasts time.Duration, then func()) *flight {
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(3 * time.Second)
		then()
	}()
	f := r.fly(ctx, t, 200, visits)
	<-done
	require.LessOrEqual(t, r.upstream.most, slots)
	require.Equal(t, slots, r.upstream.most)
	return f
}

func (r *answerRig) connectionsBreak(t *testing.T) {
	g := newGate(t, r.address)
	r.through(g).during(t, visits, 12*time.Second, func() {
		for range 4 {
			g.cut()
			time.Sleep(2 * time.Second)
		}
	})
	t.Logf("%s: %d reached the upstream", t.Name(), r.upstream.reached)
	r.requireAllFree(t)
}

// through is the rig, which clients reach by a gate.
func (r *answerRig) through(g *gate) *answerRig {
	p := *r.proxy
	p.address = g.address()
	return &answerRig{proxy: &p, upstream: r.upstream, accessLog: r.accessLog}
}

// standsStill: nothing lapses while nobody can say that a request is alive.
func (r *answerRig) standsStill(t *testing.T) {
	lost := r.operate(t, "stats", "rule=in-flight").Rules[0].Metrics["holds_lost"]
	f := r.during(t, visits, 30*time.Second, func() {
		require.NoError(t, r.envoy.Signal(syscall.SIGSTOP))
		time.Sleep(15 * time.Second) // longer than lostFor
		require.NoError(t, r.envoy.Signal(syscall.SIGCONT))
	})
	share := f.share(t, f.begin.Add(20*time.Second), f.begin.Add(30*time.Second))
	t.Logf("%s: %.1f %% of the slots used afterwards", t.Name(), 100*share)
	require.GreaterOrEqual(t, share, 0.97)
	require.Equal(t, lost, r.operate(t, "stats", "rule=in-flight").Rules[0].Metrics["holds_lost"])
	r.requireAllFree(t)
}

// vmTraps: the slots of the worker whose VM traps are lost for the time of a hold.
func (r *answerRig) vmTraps(t *testing.T) {
	const lasts = 25 * time.Second
	var trapped time.Time
	f := r.during(t, visits, lasts, func() {
		require.Equal(t, 503, r.status(t, "/flight", "x-do", "200", "x-fault", "panic-counted", "connection", "close"))
		trapped = time.Now()
	})
	lost := f.share(t, trapped.Add(2*time.Second), trapped.Add(9*time.Second))
	share := f.share(t, trapped.Add(lostFor), f.begin.Add(lasts))
	t.Logf("%s: %.1f %% of the slots used while some were lost, then %.1f %%", t.Name(), 100*lost, 100*share)
	require.GreaterOrEqual(t, share, 0.97)
	r.requireAllFree(t)
}

// killed: another Envoy that takes its place has all slots, and the upstream no more requests.
func (r *answerRig) killed(t *testing.T, d driver) {
	g := newGate(t, r.address)
	r.through(g).during(t, visits[:1], 15*time.Second, func() {
		r.kill()
		r.proxy = r.another(t, d, proxyOptions{policy: edgesPolicy})
		g.lead(r.address)
	})
	r.requireAllFree(t)
	r.noTraps(t)
}
