package lease_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	slotRule  = `{"name":"r",` + byUser + `,"algorithm":"concurrency","limits":["3"],"hold":"80s"}`
	loginRule = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["3/1m"],"settle":{},"hold":"80s"}`
	localRule = `{"name":"r",` + byUser + `,` + slots4 + `,"hold":"80s","on_unavailable":"local"}`
)

var slotRuleThatDenies = strings.Replace(slotRule, `"hold"`, `"on_unavailable":"deny","hold"`, 1)

// The request of the comment at HoldSource: its figures are these. What its account has after each step is in package
// account, by the same name.
func TestTheFirstRequestOfAKeyWithSlots(t *testing.T) {
	w, s := holdingPair(t, slotRule)
	reported := func() quota.Part {
		var m quota.Asks
		require.NoError(t, m.Decode(w.stream.Asks[0]))
		require.Len(t, m.Asks, 1)
		return m.Asks[0].Parts[0]
	}
	request := w.request("a")
	require.NotContains(t, w.verdicts, request)
	first := reported()
	require.EqualValues(t, 1, first.Number)
	require.Equal(t, []uint32{0, 1}, []uint32{first.Held, first.Waiting})
	s.serve(w.stream)
	require.EqualValues(t, 1, s.held())

	require.NoError(t, w.client.Receive(w.stream.Answers[0], w.proxy.Clock))
	w.stream.Answers = nil
	next := w.client.Next()
	subject := next.Verdict.Subjects[0]
	require.EqualValues(t, 1, subject.Cluster.Allotment.Units)
	w.onResume = func(*decide.Verdict) { require.Zero(t, subject.Cluster.Allotment.Units) }
	w.resume(next)
	require.True(t, w.verdicts[request])
	require.EqualValues(t, 1, w.holds[request][0].Units)
	w.client.Flush(w.proxy.Clock)
	require.Empty(t, w.stream.Asks, "the service knows what is held")

	w.answer(request, 0)
	second := reported()
	require.EqualValues(t, 2, second.Number)
	require.Equal(t, []uint32{0, 0}, []uint32{second.Held, second.Waiting})
	w.exchange(s)
	require.Zero(t, s.held())
}

// TestRunningRequestsKeepTheirSlots: the worker reports its accounts each eighth of the hold.
func TestRunningRequestsKeepTheirSlots(t *testing.T) {
	w, s := holdingPair(t, slotRule)
	w.request("a")
	w.exchange(s)
	for range 300 {
		w.proxy.Clock += second
		w.tick()
		w.exchange(s)
		require.EqualValues(t, 1, s.held())
		require.LessOrEqual(t, w.proxy.Clock-s.first.lastNs, 12*second)
	}
	require.Less(t, s.asked, 33)
	w.proxy.Clock += 81 * second
	require.Zero(t, s.held(), "the worker is gone")
}

// The message with an ask and its report is the first that cannot be sent. The ask leaves with the next stream.
func TestAnAskOfAMessageThatIsNotSentLeavesLater(t *testing.T) {
	w, s := holdingPair(t, slotRuleThatDenies)
	w.broken = true
	id := w.request("a")
	require.Nil(t, w.stream.Asks)
	w.broken = false
	w.proxy.Clock += 20 * ms
	w.tick()
	w.exchange(s)
	require.True(t, w.verdicts[id])
	require.EqualValues(t, 1, s.held())
}

// The service has forgotten the definition, so it notes no report. The ask leaves again at once, with both.
func TestAnAskWhoseDefinitionTheServiceLacksLeavesAgain(t *testing.T) {
	w, s := holdingPair(t, slotRuleThatDenies)
	w.request("a")
	w.exchange(s)
	s.refusal = quota.Unknown
	id := w.request("a")
	w.serve(s, 1)
	s.refusal = 0
	w.exchange(s)
	require.True(t, w.verdicts[id])
	require.Equal(t, 2, s.defined)
	require.EqualValues(t, 2, s.held())
}

// A later configuration holds nothing in the table of this proxy's share, so it has charged the units of a request of
// the earlier one when that took them. The answer charges what it costs beyond them.
func TestAHoldThatThisProxysShareHasChargedAtOnce(t *testing.T) {
	const limited = `{"name":"r",` + byUser + `,"limits":["9/1m"],"on_unavailable":"local"`
	for cost, used := range map[uint32]string{0: `"used":1,`, 1: `"used":1,`, 5: `"used":5,`} {
		w, _ := holdingPair(t, limited+`,"settle":{}}`)
		w.engine.Cluster.Service.Silent = true
		w.proxy.With("u", "a")
		later := engine.Identity{Owner: 1, ConfiguredNs: w.proxy.Clock, Random: func(b []byte) { clear(b) }}
		next := engine.New(hosttest.Policy(t, limited+`}`), w.proxy, later)
		next.Cluster.Service.Silent = true
		next.Operate(engine.Operation{Name: "leased", Rule: "r", Key: []string{"a"}})

		id := w.request("a")
		require.Len(t, w.holds[id], 1)
		require.False(t, w.holds[id][0].InTable())
		w.answer(id, cost)
		text, err := w.engine.Operate(engine.Operation{Name: "leased", Rule: "r", Key: []string{"a"}})
		require.NoError(t, err)
		require.Contains(t, string(text), used)
	}
}

// TestAccountsAreBounded: a client that invents keys while the service is silent takes no more
// memory, and when it is back, requests do not wait for all of them to be reported.
func TestAccountsAreBounded(t *testing.T) {
	w, s := holdingPair(t, strings.Replace(localRule, `"hold"`, `"capacity":200000,"hold"`, 1))
	w.engine.Cluster.Service.Silent = true
	w.down = true
	for n := range 1<<16 + 100 {
		w.request(strconv.Itoa(n))
	}
	require.Equal(t, 1<<16+100, w.admitted())
	w.down = false
	report := func() (messages int) { // as fast as a service takes asks of one stream
		for ; w.serve(s, 1) > 0; messages++ {
			w.proxy.Clock += 6 * ms
		}
		return messages
	}
	w.proxy.Clock += second
	w.tick()
	report()
	w.proxy.Clock += second
	w.tick()
	id := w.request("0")
	w.serve(s, 2)
	require.Contains(t, w.verdicts, id)
	report()
	require.LessOrEqual(t, s.asked, 1<<16+2)
	require.GreaterOrEqual(t, s.asked, 1<<16)

	// All are renewed at once in as many round trips as fit a store's quiet time by far.
	w.proxy.Clock += 10 * second
	w.tick()
	asked := s.asked
	require.LessOrEqual(t, report(), 130)
	require.Equal(t, 1<<16, s.asked-asked)
}

// TestARenewalIsOfTheTable: it renews what lies in the proxy's table, until max_hold ends the hold. A hold later, that
// has lapsed by itself, and the renewal charges the account.
func TestARenewalIsOfTheTable(t *testing.T) {
	silent := func(h *holding) {
		h.engine.Cluster.Service.Silent = true
		h.down = true
	}
	full := func(h *holding) {
		silent(h)
		for n := range 1 << 16 {
			h.request("b" + strconv.Itoa(n))
		}
	}
	var nothing [2]uint64
	isRenewed, isLost := [2]uint64{1, 0}, [2]uint64{0, 1}
	for name, tc := range map[string]struct {
		before func(h *holding)
		want   [3][2]uint64 // how often it is renewed and lost: before the end, after it, and a hold later
	}{
		"in an account":    {func(*holding) {}, [3][2]uint64{nothing, nothing, isLost}},
		"in both":          {silent, [3][2]uint64{isRenewed, nothing, isLost}},
		"in a table alone": {full, [3][2]uint64{isRenewed, nothing, nothing}},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := holdingPair(t, strings.Replace(localRule, `"hold"`, `"capacity":200000,"hold"`, 1))
			tc.before(h)
			id := h.request("a")
			h.exchange(s)
			require.Len(t, h.holds[id], 1)
			held := &h.holds[id][0]
			require.Equal(t, name != "in an account", held.InTable())
			require.Equal(t, name == "in a table alone", held.Account == nil)
			held.EndNs = h.proxy.Clock + 15*second
			m := held.Rule.Metrics
			for i, seconds := range []int{12, 12, 80} {
				renewed, lost := m.HoldsRenewed, m.HoldsLost
				for range seconds {
					h.proxy.Clock += second
					held.Renew(hold.Clocks{Now: h.proxy.Clock, MonotonicNs: h.proxy.Clock, HeldNs: h.engine.HeldNow()})
				}
				got := [2]uint64{m.HoldsRenewed - renewed, m.HoldsLost - lost}
				require.Equal(t, tc.want[i], got, "stretch %d", i)
				require.Equal(t, got == isLost, held.HasLapsed())
			}
		})
	}
}

// TestAnAllotmentIsRefunded: a request has waited and takes of its allotment; then another worker
// takes the last unit of the last rule first. What the grant gave is neither used nor held.
func TestAnAllotmentIsRefunded(t *testing.T) {
	const first = `{"name":"first","key":[{"header":"u"}],"missing_key":"skip","limits":["9/1m"]},`
	const last = `,{"name":"last","key":[{"header":"v"}],"missing_key":"skip","limits":["1/1m"]}`
	for name, limits := range map[string]string{
		"for itself": `"limits":["1/1m"],"lease":"off"`, "leased": `"limits":["1/1m"]`,
		"held": `"algorithm":"concurrency","limits":["1"],"hold":"80s"`,
	} {
		t.Run(name, func(t *testing.T) {
			rules := first + `{"name":"r",` + byUser + `,"missing_key":"skip",` + limits + `}` + last
			w, s := holdingPair(t, rules)
			other := newWorker(t, w.proxy, rules, 2)
			id := w.request("a v")
			s.serve(w.stream)
			require.NoError(t, w.client.Receive(w.stream.Answers[0], w.proxy.Clock))
			w.stream.Answers = nil
			w.proxy.After = func(string) { // the first rule has counted
				w.proxy.After = nil
				w.proxy.Headers = map[string][]string{"v": {"v"}}
				require.True(t, other.engine.Decide().Allowed)
			}
			w.goOn()
			require.Contains(t, w.verdicts, id)
			require.False(t, w.verdicts[id])
			w.tick()
			w.exchange(s)
			w.request("a")
			w.exchange(s)
			require.Equal(t, 1, w.admitted(), "the unit is there")
		})
	}
}

// Two rules share two slots of a key, and two workers each ask for both at the same time. The units of an ask are
// granted together, so one of the requests gets both, and neither keeps one from the other.
func TestRulesOfOneCounterGetTheirUnitsTogether(t *testing.T) {
	rules := several(2, counter+`,"algorithm":"concurrency","limits":["2"],"hold":"80s","on_unavailable":"deny"}`)
	one, s := holdingPair(t, rules)
	other := newHolding(t, one.proxy, rules, 2)
	first, second := one.request("a"), other.request("a")
	for range 3 {
		one.serve(s, 1)
		other.serve(s, 1)
	}
	require.True(t, one.verdicts[first])
	require.Contains(t, other.verdicts, second)
	require.False(t, other.verdicts[second])
}
