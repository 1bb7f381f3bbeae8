package lease_test

import (
	"fmt"
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
	for ; messages < most && len(w.stream.Asks) > 0; messages++ {
		s.serve(w.stream)
		for len(w.stream.Answers) > 0 {
			w.deliver()
		}
	}
	return messages
}

// Requests of one key at once, of a shadow rule without room for all: none asks for ever.
func TestADeniedShadowRuleAmongManyRequests(t *testing.T) {
	rule := `"scope":"cluster","on_unavailable":"deny","key":[{"header":"u"}]`
	for _, lease := range []string{`"off","off"`, `"off","auto"`, `"auto","off"`, `"auto","auto"`} {
		first, second, _ := strings.Cut(lease, ",")
		w, s := pair(t, `{"name":"tried","mode":"shadow","limits":["3/1m"],"lease":`+first+`,`+rule+`},`+
			`{"name":"r","limits":["100/1m"],"lease":`+second+`,`+rule+`}`)
		w.request("x")
		for range 5 {
			w.request("a")
		}
		messages := 0
		for range 40 {
			w.proxy.Clock += 5 * ms
			messages += w.serve(s, 1)
			w.tick()
		}
		require.Equal(t, 6, w.admitted(), lease)
		require.LessOrEqual(t, messages, 5, lease)
	}
}

// Two answers of one message may be of one key, where requests have other rules beside:
// neither's units are lost.
func TestAnswersOfOneKey(t *testing.T) {
	for _, lease := range []string{`"off"`, `"auto"`, "5"} {
		for _, mode := range []string{"enforce", "shadow"} {
			w, s := pair(t, fmt.Sprintf(`{"name":"r","limits":["3/1m"],"scope":"cluster","key":[{"header":"u"}],"lease":%s},`+
				`{"name":"f","mode":"%s","limits":["100/1m"],"scope":"cluster","key":[{"header":"v"}],"missing_key":"skip","lease":%[1]s}`, lease, mode))
			for _, user := range []string{"x", "a", "a v", "a vv"} {
				w.request(user)
			}
			w.serve(s, 10)
			require.Equal(t, 4, w.admitted(), "%s %s", lease, mode)
		}
	}
}

// An ask has room for 16 keys. Enforced rules go before shadow rules, and a request is
// decided after few asks.
func TestMoreRulesThanAnAskTakes(t *testing.T) {
	for _, lease := range []string{`"off"`, `"auto"`} {
		for mode, contention := range map[string]string{"shadow": "deny", "enforce": "allow"} {
			var rules []string
			for i := range 17 {
				if i == 16 {
					mode = "enforce"
				}
				rules = append(rules, fmt.Sprintf(`{"name":"r%d","mode":"%s","limits":["100/1m"],"scope":"cluster","on_contention":"%s","key":[{"header":"u"}],"lease":%s}`,
					i, mode, contention, lease))
			}
			w, s := pair(t, strings.Join(rules, ","))
			w.request("a")
			require.LessOrEqual(t, w.serve(s, 10), 3, "%s %s", lease, contention)
			require.Equal(t, 1, w.admitted(), "%s %s", lease, contention)
		}
	}
}

// Rules that share a counter ask for both hits at once, and never again for these.
func TestRulesOfOneCounterNeedOneAsk(t *testing.T) {
	for _, lease := range []string{`"auto"`, `5`, `"off"`} {
		rule := `"counter":"c","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"],"lease":` + lease
		w, s := pair(t, `{"name":"a",`+rule+`},{"name":"b",`+rule+`}`)
		w.request("a")
		require.Equal(t, 1, w.serve(s, 3), lease)
		require.Equal(t, 1, w.admitted())
	}
}

// A shadow rule whose units are gone keeps no other rule from its units.
func TestADeniedShadowRuleNeedsOneAsk(t *testing.T) {
	rule := `"scope":"cluster","key":[{"header":"u"}],"lease":"off"`
	w, s := pair(t, `{"name":"tried","mode":"shadow","limits":["1/1m"],`+rule+`},{"name":"r","limits":["100/1m"],`+rule+`}`)
	for n := 1; n <= 3; n++ {
		w.request("a")
		s.serve(w.stream)
		w.deliver()
		require.Equal(t, n, w.admitted())
		require.Empty(t, w.stream.Asks)
	}
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
		answers := quota.Answers{Answers: []quota.Answer{{ID: m.Asks[0].ID, Result: quota.Granted, Grants: grants[:parts]}}}
		require.NoError(t, w.client.Receive(answers.Append(nil), w.proxy.Clock))
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
		denied := quota.Answers{Answers: []quota.Answer{{
			ID: 1, Result: quota.Denied, Grants: []quota.Grant{{Denied: true, WaitNs: second, Windows: []quota.Standing{{Used: 9}}}},
		}}}
		if strings.Contains(rest, "shadow") {
			denied.Answers[0].Result = quota.Granted
		}
		require.NoError(t, w.client.Receive(denied.Append(nil), w.proxy.Clock))
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
