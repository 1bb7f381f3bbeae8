package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/rates"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

// The API says what proxies count, since before somebody asked, beside the limits.
func TestRatesAndLimits(t *testing.T) {
	m := newManagedFixture(t)
	var n atomic.Int64
	at := listenerAt(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/top") {
			fmt.Fprint(w, `{"rules":[{"rule":"per-user","keys":[{"hash":"9f86d081884c7d65","denied":5,"error":0}],"rest":0}]}`)
			return
		}
		fmt.Fprintf(w, `{"rules":[{"rule":"per-user","metrics":{"allowed":%d,"denied":1}},`+
			`{"rule":"gone","metrics":{}}],"vm_starts":1}`, n.Add(100))
	})
	m.json("POST", "/v1/policies", managed, 201, &Applied{})
	m.proxyAt("edge-1", at)
	// Nobody need look for there to be a past.
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() {
		m.server.rates.Run(ctx)
		close(kept)
	}()
	list := func() *rates.List {
		list, err := m.server.rates.List(t.Context(), "default")
		require.NoError(t, err)
		return list
	}
	hasBoth := func() bool { return len(list().Rules) == 2 }
	require.Eventually(t, hasBoth, time.Minute, time.Millisecond)
	stop()
	<-kept
	require.Empty(t, list().Rules[0].Keys, "keys are for those who look")
	now := time.Now()
	m.server.rates.Clock = func() time.Time { return now }
	for range 2 {
		now = now.Add(10 * time.Second)
		require.NoError(t, m.server.rates.Update(t.Context(), "default"))
	}
	var got rates.List
	m.json("GET", "/v1/rates", "", 200, &got)
	require.Len(t, got.Times, 2)
	require.Empty(t, got.Failed)
	require.Equal(t, rates.Rate{
		Rule: "per-user", Each: "key", Limits: []rates.Limit{{Text: "10 per 1m", Rate: 10.0 / 60}},
		Total: rates.Counts{Allowed: 300, Denied: 1},
		Keys:  []counted.DeniedKey{{Hash: "9f86d081884c7d65", Denied: 5}},
		Rates: got.Rules[0].Rates,
	}, got.Rules[0])
	require.InDelta(t, 10, got.Rules[0].Rates[1].Allowed, 0.1)
	require.Empty(t, got.Rules[1].Limits, "a rule that the current revision does not have")
	got = rates.List{}
	m.json("GET", "/v1/rates", "", 200, &got)
	require.EqualValues(t, 300, n.Load(), "what was asked just now is not asked again")
	var e Error
	m.json("GET", "/v1/rates?policy=none", "", 404, &e)
}
