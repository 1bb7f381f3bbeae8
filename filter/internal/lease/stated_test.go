package lease_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

const (
	slotRule  = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"algorithm":"concurrency","limits":["3"],"hold":"80s"}`
	loginRule = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["3/1m"],"settle":{},"hold":"80s"}`
	localRule = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"algorithm":"concurrency","limits":["4"],"hold":"80s","on_unavailable":"local"}`
)

// holding is a worker whose requests run until they are answered.
type holding struct {
	*worker
	holds map[uint32][]decide.Hold
}

func newHolding(t *testing.T, proxy *hosttest.Proxy, rules string, seed uint32) *holding {
	h := &holding{newWorker(t, proxy, rules, seed), map[uint32][]decide.Hold{}}
	h.onDecided = func(context uint32, v *decide.Verdict) {
		if v.Allowed {
			h.holds[context] = v.AppendHolds(nil)
		}
	}
	return h
}

func holdingPair(t *testing.T, rules string) (*holding, *service) {
	proxy := hosttest.New()
	proxy.Clock = 1000 * 60 * second
	return newHolding(t, proxy, rules, 1), newService(t, func() int64 { return proxy.Clock })
}

// answer ends a request, at what its answer costs.
func (h *holding) answer(context, cost uint32) {
	for _, hold := range h.holds[context] {
		hold.Settle(cost, decide.ByAnswer, h.proxy.Clock)
	}
	delete(h.holds, context)
	if h.engine.Leases.HasNews() {
		h.client.State(h.proxy.Clock)
	}
}

// TestManyChangesInOneMessage: what changes while a message is under way travels with the next.
func TestManyChangesInOneMessage(t *testing.T) {
	w, s := holdingPair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"algorithm":"concurrency","limits":["100"],"hold":"80s"}`)
	for _, user := range []string{"a", "a", "b", "c"} {
		w.request(user)
	}
	w.exchange(s)
	for context := range w.holds {
		w.answer(context, 0)
	}
	require.Len(t, w.stream.Asks, 1)
	s.serve(w.stream)
	w.deliver()
	require.Len(t, w.stream.Asks, 1)
	w.exchange(s)
	require.Zero(t, s.held())
}

// TestRunningRequestsKeepTheirSlots: the worker states its levels each eighth of the hold.
func TestRunningRequestsKeepTheirSlots(t *testing.T) {
	w, s := holdingPair(t, slotRule)
	w.request("a")
	w.exchange(s)
	for range 300 {
		w.proxy.Clock += second
		w.tick()
		w.exchange(s)
		require.EqualValues(t, 1, s.held())
		require.LessOrEqual(t, w.proxy.Clock-s.first.lastNs, 12*second, "a store that has lost its state waits for an eighth and 4 s")
	}
	require.Less(t, s.asked, 33)
	w.proxy.Clock += 81 * second
	require.Zero(t, s.held(), "the worker is gone")
}

// TestASilentServiceIsStatedToLater: a share of the limit is held without it.
func TestASilentServiceIsStatedToLater(t *testing.T) {
	w, s := holdingPair(t, localRule)
	w.request("b")
	w.exchange(s)
	w.answer(1, 0)
	w.exchange(s)
	w.engine.Leases.SetProxies(2)
	w.down, w.stream = true, nil
	w.client.Closed(w.proxy.Clock)
	var all []uint32
	for range 3 {
		all = append(all, w.request("a"))
	}
	for range 30 {
		w.proxy.Clock += 10 * ms
		w.tick()
	}
	require.True(t, w.verdicts[all[0]])
	require.True(t, w.verdicts[all[1]])
	require.False(t, w.verdicts[all[2]], "the share is 2")
	w.down = false
	for range 3 {
		w.proxy.Clock += second
		w.tick()
		w.exchange(s)
	}
	require.EqualValues(t, 2, s.held())
	w.answer(all[0], 0)
	w.answer(all[1], 0)
	w.exchange(s)
	require.Zero(t, s.held())
}

// TestAForgottenLevelIsNotStated: an ask that was queued for long states the key's new one.
func TestAForgottenLevelIsNotStated(t *testing.T) {
	w, s := holdingPair(t, localRule)
	w.engine.Leases.Silent, w.down = true, true
	hold := w.request("a")
	w.client.State(w.proxy.Clock) // it is queued
	w.answer(hold, 0)
	for range 15 {
		w.proxy.Clock += second
		w.tick()
	}
	w.request("a")
	w.down = false
	w.proxy.Clock += 2 * second
	w.tick() // it probes
	w.exchange(s)
	require.EqualValues(t, 1, s.held())
}

// TestAnOlderService: it knows no levels, and is as good as silent. Nothing asks it for ever.
func TestAnOlderService(t *testing.T) {
	w, s := holdingPair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"algorithm":"concurrency","limits":["3"],"on_unavailable":"deny"}`)
	s.old = true
	first := w.request("a")
	for range 20 {
		w.proxy.Clock += 10 * ms
		w.serve(s, 1)
		w.tick()
	}
	require.Contains(t, w.verdicts, first)
	require.False(t, w.verdicts[first])
	messages := 0
	for range 500 {
		w.proxy.Clock += 10 * ms
		messages += w.serve(s, 5)
		w.tick()
	}
	require.LessOrEqual(t, messages, 6)
}

// TestADenialOfTwoRulesOfACounter: what is taken back of one is no service that is silent.
func TestADenialOfTwoRulesOfACounter(t *testing.T) {
	rule := `"scope":"cluster","counter":"c","key":[{"header":"u"}],"limits":["3/1m"],"settle":{},"on_unavailable":"allow"}`
	w, s := holdingPair(t, `{"name":"a",`+rule+`,{"name":"b",`+rule)
	for n := range 4 {
		id := w.request("a")
		w.exchange(s)
		require.Contains(t, w.verdicts, id)
		require.Equal(t, n == 0, w.verdicts[id], "request %d", n)
		require.EqualValues(t, 2, s.held())
	}
}

// TestALaterConfigurationStates: what lingers of an earlier one is free at its end.
func TestALaterConfigurationStates(t *testing.T) {
	w, s := holdingPair(t, slotRule)
	for range 2 {
		w.request("a")
	}
	w.exchange(s)
	lingers := decide.Lingering{Hold: w.holds[1][0], UntilNs: w.proxy.Clock + second}
	w.answer(2, 0) // and the stream ends before it is heard
	w.client.End(w.proxy.Clock)
	heir := newHolding(t, w.proxy, slotRule, 2)
	heir.client.Inherit(w.client, []decide.Lingering{lingers})
	heir.client.State(w.proxy.Clock)
	heir.exchange(s)
	require.EqualValues(t, 1, s.held())
	for range 2 {
		heir.proxy.Clock += second
		heir.tick()
		heir.exchange(s)
	}
	require.Zero(t, s.held())
}
