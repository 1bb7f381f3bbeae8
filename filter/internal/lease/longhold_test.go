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

// renew renews what requests hold, as the worker's tick does.
func (h *holding) renew() {
	for _, holds := range h.holds {
		for i := range holds {
			holds[i].Renew(h.proxy.Clock, h.proxy.Clock, h.engine.HeldNow())
		}
	}
	h.tick()
}
