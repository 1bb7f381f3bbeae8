package lease_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// serve lets the service answer messages, so many at most.
func (w *worker) serve(s *service, most int) (messages int) {
	for ; messages < most && w.stream != nil && len(w.stream.Asks) > 0; messages++ {
		s.serve(w.stream)
		for len(w.stream.Answers) > 0 {
			w.deliver()
		}
	}
	return messages
}

// A record of another epoch of the clock is written over by the next answer.
func TestARecordOfAnotherEpochHeals(t *testing.T) {
	w, s := pair(t, perUser)
	w.request("a")
	w.exchange(s)
	w.tick()
	w.proxy.Clock -= 20 * second
	for range 3 {
		w.proxy.Calls = nil
		w.request("a")
		w.exchange(s)
		w.tick()
		w.proxy.Clock += 200 * ms
		require.Less(t, len(w.proxy.Calls), 20)
	}
}

// late tells an old time first: its worker stood still between reading the clock and
// the record.
type late struct {
	*hosttest.Proxy
	old []int64
}

func (l *late) Monotonic() int64 {
	if len(l.old) > 0 {
		now := l.old[0]
		l.old = l.old[1:]
		return now
	}
	return l.Proxy.Monotonic()
}

// A worker that stood still writes over no units that other workers have admitted
// without the service.
func TestAStandstillForgetsNoCharge(t *testing.T) {
	proxy := hosttest.New()
	proxy.Clock = 1000 * 60 * second
	hosts := []*late{{Proxy: proxy}, {Proxy: proxy}}
	var workers []*worker
	rules := hosttest.Policy(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"],"on_unavailable":"local"}`)
	for i, host := range hosts {
		w := &worker{t: t, proxy: proxy, random: uint32(i), users: map[uint32]string{}, verdicts: map[uint32]bool{}}
		w.engine = engine.New(rules, host, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
		w.engine.Leases.TimeoutNs, w.engine.Leases.Silent = 100*ms, true
		w.client = lease.NewClient(w, w.engine.Leases)
		workers = append(workers, w)
	}
	for range 5 {
		require.True(t, workers[0].verdicts[workers[0].request("a")])
	}
	require.True(t, workers[1].verdicts[workers[1].request("b")]) // finds the table
	hosts[1].old = []int64{proxy.Clock - 15*second}
	require.True(t, workers[1].verdicts[workers[1].request("a")])
	workers[0].engine.Leases.Silent = false
	proxy.Headers = map[string][]string{"u": {"a"}}
	v := workers[0].engine.Decide()
	require.True(t, v.Pending)
	require.EqualValues(t, 6, workers[0].engine.Leases.AppendParts(nil, v)[0].Spent)
}

// Where the store fails for a shadow rule's key alone, the other rules decide as ever.
func TestAFailedShadowPart(t *testing.T) {
	rule := `"scope":"cluster","limits":["9/1m"],"on_unavailable":"deny","key":[{"header":"u"}]`
	w, _ := pair(t, `{"name":"tried","mode":"shadow",`+rule+`},{"name":"r","lease":"off",`+rule+`}`)
	for n, parts := range []int{2, 1} {
		id := w.request("a")
		require.NotContains(t, w.verdicts, id)
		var m quota.Asks
		require.NoError(t, m.Decode(w.stream.Asks[n]))
		require.Len(t, m.Asks[0].Parts, parts, "nobody asks for a key that has just failed")
		grants := []quota.Grant{{Number: uint32(n + 1), Units: 1, ValidNs: second, Windows: []quota.Standing{{Used: 1}}}, {Failed: true}}
		answers := quota.Grants{Results: []quota.AskResult{{ID: m.Asks[0].ID, Result: quota.Granted, Grants: grants[:parts]}}}
		w.receive(answers.Append(nil))
		require.True(t, w.verdicts[id])
	}
}

// Requests of a rule that counts denied ones ask together only at the same cost: of an
// ask that is denied all that waits counts, and one that costs less may pass.
func TestDeniedRequestsThatCountAskByCost(t *testing.T) {
	for _, c := range []struct {
		rest  string
		parts [][2]uint32 // cost and waiting
	}{
		{`,"count_denied":true`, [][2]uint32{{3, 6}, {1, 1}}},
		{``, [][2]uint32{{3, 7}}},
	} {
		w, s := pair(t, `{"name":"r","scope":"cluster","lease":"off","key":[{"header":"u"}],"limits":["9/1m"],"cost":{"header":"v","max":9}`+c.rest+`}`)
		for _, r := range []string{"b 1", "a 3", "a 1", "a 3"} {
			w.request(r)
		}
		w.serve(s, 1)
		var m quota.Asks
		require.NoError(t, m.Decode(w.stream.Asks[0]))
		var parts [][2]uint32
		for _, a := range m.Asks {
			parts = append(parts, [2]uint32{a.Parts[0].Cost, a.Parts[0].Waiting})
		}
		require.Equal(t, c.parts, parts, c.rest)
	}
}

// An answer that denies leaves requests that came since to ask for themselves, where
// denied ones count.
func TestADenialThatCountsIsOfThoseWhoAsked(t *testing.T) {
	for rest, asks := range map[string]int{`,"count_denied":true`: 1, `,"count_denied":true,"mode":"shadow"`: 1, ``: 0} {
		w, _ := pair(t, `{"name":"r","scope":"cluster","lease":"off","key":[{"header":"u"}],"limits":["9/1m"]`+rest+`}`)
		w.request("a")
		w.request("a")
		denied := quota.Grants{Results: []quota.AskResult{{
			ID: 1, Result: quota.Denied, Grants: []quota.Grant{{Denied: true, WaitNs: second, Windows: []quota.Standing{{Used: 9}}}},
		}}}
		if strings.Contains(rest, "shadow") {
			denied.Results[0].Result = quota.Granted
		}
		w.receive(denied.Append(nil))
		require.Len(t, w.verdicts, 2-asks, rest)
		require.Len(t, w.stream.Asks, 1+asks, rest)
	}
}

// A request that joins an ask for requests to come asks for what it costs.
func TestAnAskAheadIsJoined(t *testing.T) {
	w, s := pair(t, `{"name":"r","scope":"cluster","lease":"auto","key":[{"header":"u"}],"limits":["1000/1m"]}`)
	for range 20 {
		w.proxy.Clock += 10 * ms
		w.request("a")
		w.exchange(s)
	}
	w.request("b") // its message is under way
	for decided := true; decided; {
		_, decided = w.verdicts[w.request("a")]
	}
	s.serve(w.stream)
	w.deliver()
	var m quota.Asks
	require.NoError(t, m.Decode(w.stream.Asks[0]))
	part := m.Asks[0].Parts[0]
	require.Equal(t, []uint32{1, 1}, []uint32{part.Cost, part.Waiting})
	require.Positive(t, part.Ahead)
}
