package lease_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

// TestALongRequestLapsesOnce: what max_hold has ended frees nothing of another request's when it
// lingers into a later configuration.
func TestALongRequestLapsesOnce(t *testing.T) {
	w, s := holdingPair(t, slotRule)
	w.request("a")
	w.request("a")
	w.exchange(s)
	w.holds[1][0].EndNs = w.proxy.Clock
	for range 81 {
		w.proxy.Clock += second
		w.renew()
		w.exchange(s)
	}
	require.EqualValues(t, 1, s.held())
	heir := newHolding(t, w.proxy, slotRule, 2)
	heir.client.Inherit(w.client, []decide.Lingering{{Hold: w.holds[1][0], UntilNs: w.proxy.Clock + second}})
	for range 3 {
		heir.proxy.Clock += second
		heir.tick()
		heir.exchange(s)
	}
	require.EqualValues(t, 1, s.held())
}

// TestALongRequestWithoutTheService: max_hold ends what a silent service's proxy counts itself.
func TestALongRequestWithoutTheService(t *testing.T) {
	w, _ := holdingPair(t, localRule)
	w.engine.Leases.Silent, w.down = true, true
	var all []uint32
	for range 5 {
		all = append(all, w.request("a"))
	}
	require.False(t, w.verdicts[all[4]], "the share is 4")
	w.holds[all[0]][0].EndNs = w.proxy.Clock + 80*second
	for range 171 { // max_hold, and hold and an eighth
		w.proxy.Clock += second
		w.renew()
	}
	require.True(t, w.verdicts[w.request("a")])
	require.False(t, w.verdicts[w.request("a")])
}

// renew renews what requests hold, as the worker's tick does.
func (h *holding) renew() {
	for _, holds := range h.holds {
		for i := range holds {
			holds[i].Renew(h.proxy.Clock, h.proxy.Clock, h.engine.HeldNow())
		}
	}
	h.tick()
}
