package lease_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/explain"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/talk"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// The request of the package comment: its figures are these.
func TestARequestWhoseUnitsAreNotThere(t *testing.T) {
	w, s := pair(t, `{"name":"r",`+byUser+`,"limits":["1000/1m"]}`)
	w.proxy.Clock += 57 * second // of a minute
	for range 300 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 10 * ms
	}
	request := w.request("a") // the minute is over
	require.NotContains(t, w.verdicts, request)

	var m quota.Asks
	require.NoError(t, m.Decode(w.stream.Asks[0]))
	require.Len(t, m.Asks, 1)
	ask := m.Asks[0].Parts[0]
	require.Equal(t, []uint32{1, 1, 600}, []uint32{ask.Cost, ask.Waiting, ask.Ahead})

	s.serve(w.stream)
	var answer quota.Results
	require.NoError(t, answer.Decode(w.stream.Answers[0]))
	require.EqualValues(t, 250, answer.Results[0].Grants[0].Units)
	w.deliver()
	require.True(t, w.verdicts[request])
	leased, err := w.engine.Operate(engine.Operation{Name: "leased", Rule: "r", Key: []string{"a"}})
	require.NoError(t, err)
	require.Equal(t, `{"value":249}`, string(leased))
}

// A later configuration of fewer windows may have made the table, which then keeps no
// standing of the others.
func TestALeaseInATableOfFewerWindows(t *testing.T) {
	rule := func(limits string) string {
		return `{"name":"r","scope":"cluster","key":[{"header":"u"}],"lease":20,"limits":[` + limits + `]}`
	}
	w, s := pair(t, rule(`"500/1s","500/1m","900/1h"`))
	w.proxy.With("u", "a")
	later := engine.Identity{Owner: 1, ConfiguredNs: w.proxy.Clock, Random: func(b []byte) { clear(b) }}
	engine.New(hosttest.Policy(t, rule(`"500/1s"`)), w.proxy, later).Decide()
	for range 10 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 10 * ms
	}
	require.Equal(t, 10, w.admitted())
	v := w.engine.Decide()
	require.True(t, v.Allowed)
	_, known := v.Subjects[0].View()
	require.False(t, known)
}

// A request takes units of a lease, then a rule denies it. Meanwhile the lease's record has gone, so
// the units cannot go back. What the service has said last of the key is still told.
func TestALeaseThatHasGoneAtTheRefund(t *testing.T) {
	const last = `,{"name":"last","key":[{"header":"v"}],"missing_key":"skip","limits":["1/1m"]}`
	rules := `{"name":"r",` + byUser + `,"missing_key":"skip","limits":["500/1m"],"lease":20}` + last
	w, s := pair(t, rules)
	for i := range 10 {
		w.request(fmt.Sprint("a other", i))
		w.exchange(s)
		w.proxy.Clock += 10 * ms
	}
	require.Positive(t, w.leased(t, "a"))
	other := newWorker(t, w.proxy, rules, 2)
	w.proxy.After = func(page string) { // the request has taken of the lease
		w.proxy.After = nil
		delete(w.proxy.Store, page)
		w.proxy.Headers = map[string][]string{"v": {"v"}}
		require.True(t, other.engine.Decide().Allowed)
	}
	w.onDecided = func(_ uint32, v *decide.Verdict) {
		s := v.Subjects[0]
		view, known := s.View()
		require.True(t, known)
		_, usage := view.Window(0)
		require.Positive(t, usage.Used)
	}
	id := w.request("a v")
	require.Contains(t, w.verdicts, id)
	require.False(t, w.verdicts[id])
}

// The units of a grant for which the key's lease has no room go back, and so does the unit that a request leaves which
// has waited for the grant.
func TestUnitsWithoutRoomInTheLeaseGoBack(t *testing.T) {
	const rules = `{"name":"r",` + byUser + `,"limits":["10000/1m"]}`
	w, s := pair(t, rules)
	w.proxy.Clock += 59 * second // of a minute
	for range 100 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 10 * ms
	}
	workers := []*worker{w} // the minute is over, so all of them ask
	for seed := range uint32(leased.MaxGrants) {
		workers = append(workers, newWorker(t, w.proxy, rules, seed+2))
	}
	for _, w := range workers {
		w.request("a")
	}
	for _, w := range workers[1:] { // each has units in the lease, and so no other has room there
		w.exchange(s)
	}
	s.serve(w.stream)
	var answer quota.Results
	require.NoError(t, answer.Decode(w.stream.Answers[0]))
	require.NoError(t, w.client.Receive(w.stream.Answers[0], w.proxy.Clock))
	w.client.Forget(w.next)
	w.client.Flush(w.proxy.Clock)

	var m quota.Asks
	require.NoError(t, m.Decode(w.stream.Asks[0]))
	g := answer.Results[0].Grants[0]
	require.Greater(t, g.Units, uint32(1))
	require.Equal(t, []quota.Return{{Grant: g.Number, Units: g.Units - 1}, {Grant: g.Number, Units: 1}}, m.Returns)
}

// Units that come when their time is over go back with the next message, and not over the key's lease at a later tick.
func TestUnitsWhoseTimeIsOverGoBackAtOnce(t *testing.T) {
	for lateNs, returns := range map[int64][]quota.Return{second - 1: nil, second: {{Grant: 7, Units: 5}}} {
		w, _ := pair(t, perUser)
		w.request("a")
		w.proxy.Clock += lateNs
		m := quota.Results{Results: []quota.AskResult{{ID: w.lastID, Outcome: quota.Granted, Grants: []quota.Grant{{
			Number: 7, Units: 5, ValidNs: second, Leased: true, Windows: []quota.Standing{{Used: 5}},
		}}}}}
		w.receive(m.Append(nil))
		w.request("b")
		var asks quota.Asks
		require.NoError(t, asks.Decode(w.stream.Asks[1]))
		require.Equal(t, returns, asks.Returns)
	}
}

// A tick reads nothing of what cannot be idle yet: ticks come each 10 ms while a
// request waits, and a worker may hold thousands of grants.
func TestATickReadsOnlyWhatMayBeIdle(t *testing.T) {
	w, s := pair(t, perUser)
	const users = 50
	for range 3 { // then each has units ahead of need
		for i := range users {
			w.request(fmt.Sprint("user", i))
			w.exchange(s)
		}
		w.proxy.Clock += 100 * ms
	}
	reads := func(ticks int) int {
		w.proxy.Calls = nil
		for range ticks {
			w.proxy.Clock += 10 * ms
			w.tick()
			w.exchange(s)
		}
		return count(w.proxy.Calls, "get")
	}
	require.LessOrEqual(t, reads(100), 2*users, "once a second, and one second begins")
	require.Empty(t, w.stream.Asks)
	reads(400)
	require.Zero(t, reads(100), "all have gone back")
}

// A worker that remembers many grants visits some of them soon again: there must be room for others. Each new grant
// pays for a visit.
func TestAListHalfFullIsVisitedMoreOften(t *testing.T) {
	w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":["100/1h"]}`)
	const users = 2100 // of the 4096 that a worker remembers
	for i := range users {
		w.request(fmt.Sprint("user", i))
		m := quota.Results{Results: []quota.AskResult{{ID: w.lastID, Outcome: quota.Granted, Grants: []quota.Grant{{
			Number: uint32(i + 1), Units: 5, ValidNs: 10 * second, Leased: true, Windows: []quota.Standing{{Used: 5}},
		}}}}}
		w.receive(m.Append(nil))
	}
	for i, after := range []int64{second, 50 * ms, 50 * ms} {
		w.proxy.Calls = nil
		w.proxy.Clock += after
		w.tick()
		require.Equal(t, []int{users, 128, 128}[i], count(w.proxy.Calls, "get"))
	}
}

// count is how many of the calls have the name.
func count(calls []string, name string) (n int) {
	for _, call := range calls {
		if call == name {
			n++
		}
	}
	return n
}

// Grants that are spent at once leave room for others to be returned.
func TestSpentGrantsLeaveTheList(t *testing.T) {
	w, s := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["1000000/1m"],"lease":1}`)
	for i := range 12_000 { // of ten keys, within a second; each grant has a unit for the next request
		w.request(fmt.Sprint("user", i/2%10))
		w.exchange(s)
		w.proxy.Clock += ms / 16
		if i%160 == 0 {
			w.tick()
		}
	}
	require.Greater(t, s.asked, 5000)
	counts := map[string]uint64{}
	w.engine.EachMetric(func(m engine.Series, count uint64) { counts[m.Metric] += count })
	require.Contains(t, counts, "leased_units_lost")
	require.Zero(t, counts["leased_units_lost"])
}

const saidByV = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"on_unavailable":"deny",` +
	`"limits":[{"requests":{"header":"v","trusted":true,"default":10,"max":100000},"per":"1m"}]`

// leased is what the proxy says that it holds of a user's key.
func (w *worker) leased(t *testing.T, user string) (units int) {
	text, err := w.engine.Operate(engine.Operation{Name: "leased", Rule: "r", Key: []string{user}})
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(text), `{"value":%d}`, &units)
	require.NoError(t, err)
	return units
}

// More numbers than a stream has room for definitions are all decided by
// the service itself, each by its own; and none is ever unknown to it.
func TestMoreNumbersThanDefinitionsOnOneStream(t *testing.T) {
	w, s := pair(t, saidByV+`,"lease":"off"}`)
	const numbers = 1500
	for i := range 2 * numbers {
		n := i % numbers
		w.request(fmt.Sprintf("u%d %d", n, n%3+n))
		w.proxy.Clock += ms / 10
		if i%7 == 0 {
			w.exchange(s)
		}
	}
	w.exchange(s)
	want := 0
	for n := range numbers {
		want += min(2, n%3+n)
	}
	require.Equal(t, want, w.admitted())
	require.LessOrEqual(t, s.defined, s.asked, "at most one with each ask")

	// A few numbers are defined once, however many requests say them.
	s.asked, s.defined = 0, 0
	for i := range 600 {
		w.request(fmt.Sprintf("v%d %d", i, 7+i%100))
		if i%7 == 0 {
			w.exchange(s)
		}
	}
	w.exchange(s)
	require.Equal(t, 600, s.asked)
	require.LessOrEqual(t, s.defined, 200)
}

// TestOperationsOnLeases: a proxy says what it holds of a key, and leaves all other
// questions about a key to the quota service. Cleaning takes no lease.
func TestOperationsOnLeases(t *testing.T) {
	w, s := pair(t, perUser+`,{"name":"own","key":[{"header":"u"}],"limits":["100/1m"]}`)
	do := func(name, rule string, key ...string) (string, error) {
		text, err := w.engine.Operate(engine.Operation{Name: name, Rule: rule, Key: key, N: 1})
		return string(text), err
	}
	value := func(name string, key ...string) (value int) {
		text, err := do(name, "r", key...)
		require.NoError(t, err)
		_, err = fmt.Sscanf(text, `{"value":%d}`, &value)
		require.NoError(t, err, text)
		return value
	}
	for range 10 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 50 * ms
	}
	held := value("leased", "a")
	require.Positive(t, held)
	require.Zero(t, value("leased", "b"))
	w.request("a")
	require.Equal(t, held-1, value("leased", "a"))

	stats, err := do("stats", "r")
	require.NoError(t, err)
	require.Contains(t, stats, `{"rule":"r","keys":1,`)
	require.NotContains(t, stats, `"bytes":0,`)
	require.Zero(t, value("clean"))
	require.Equal(t, held-1, value("leased", "a"))

	_, err = do("get", "r", "a")
	require.EqualError(t, err, `rule "r" has scope cluster: its counters are the quota service's, `+
		`which sluice counters asks without --proxy`)
	_, err = do("leased", "own", "a")
	require.EqualError(t, err, `rule "own" has scope proxy: it leases nothing`)

	w.proxy.Clock += 60 * second
	require.Zero(t, value("leased", "a"))
	require.Equal(t, 1, value("clean"), "nothing is held")
	stats, err = do("stats", "r")
	require.NoError(t, err)
	require.Contains(t, stats, `{"rule":"r","keys":0,`)

	// While the service is silent the proxy says what it has counted by itself, of its share.
	w.engine.Cluster.Service.Silent = true
	for range 3 {
		w.request("b")
	}
	for key, used := range map[string]uint32{"b": 3, "c": 0} {
		text, err := do("leased", "r", key)
		require.NoError(t, err)
		want := fmt.Sprintf(`{"value":0,"silent":"local","windows":[{"limit":100,"per_ns":60000000000,"used":%d,`, used)
		require.True(t, strings.HasPrefix(text, want), text)
	}
}

// A key that an override leaves unlimited leases nothing, of a rule of either kind, also while the service is silent.
func TestAnUnlimitedKeyLeasesNothing(t *testing.T) {
	for _, kind := range []string{`,"limits":["9/1m"]`, `,` + slots4} {
		w, _ := pair(t, `{"name":"r",`+byUser+kind+`,"overrides":[{"key":["a"],"unlimited":true}]}`)
		for _, silent := range []bool{false, true} {
			w.engine.Cluster.Service.Silent = silent
			text, err := w.engine.Operate(engine.Operation{Name: "leased", Rule: "r", Key: []string{"a"}})
			require.NoError(t, err)
			require.Equal(t, `{"value":0}`, string(text))
		}
	}
}

// A shadow rule is not asked about a key, because another rule denies the request. It says nothing of the lease of the
// key before.
func TestALeaseOfAnotherKeyIsNotTold(t *testing.T) {
	w, _ := pair(t, `{"name":"first","key":[{"header":"v"}],"missing_key":"skip","limits":["1/1m"]},`+
		`{"name":"r","mode":"shadow",`+byUser+`,"limits":["100/1m"]}`)
	var told []*result.Lease
	w.onDecided = func(_ uint32, v *decide.Verdict) {
		told = append(told, lease.LeaseOf(v.Subjects[len(v.Subjects)-1]))
	}
	w.request("a v")
	w.grant(5, 10*second, true)
	w.goOn()
	require.True(t, w.verdicts[w.request("a w")])
	require.False(t, w.verdicts[w.request("b v")])
	require.EqualValues(t, 3, told[1].Units)
	require.Equal(t, &result.Lease{}, told[2])
}

// TestExplainALease: what a rule of scope cluster makes of a request, and that it
// would ask where it cannot know.
func TestExplainALease(t *testing.T) {
	w, s := pair(t, perUser)
	explained := func() result.Explanation {
		request := explain.Request{Method: "GET", Path: "/", Headers: map[string][]string{"u": {"a"}}}
		text := explain.Explain(nil, w.engine, w.proxy, &request)
		var x result.Explanation
		require.NoError(t, json.Unmarshal(text, &x), "%s", text)
		require.Equal(t, string(text), string(x.Append(nil)))
		return x
	}
	x := explained()
	require.True(t, x.Pending)
	require.Nil(t, x.Allowed)
	require.True(t, x.Rules[0].Pending)
	require.Nil(t, x.Rules[0].Allowed)
	require.Equal(t, &result.Lease{}, x.Rules[0].Lease)
	require.Empty(t, x.Rules[0].Windows, "the service has not said anything")

	for range 10 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 50 * ms
	}
	x = explained()
	held := x.Rules[0].Lease
	require.Positive(t, held.Units)
	require.Positive(t, held.EndsNs)
	require.False(t, x.Pending)
	require.True(t, *x.Allowed)
	require.True(t, *x.Rules[0].Allowed)
	require.Greater(t, x.Rules[0].Windows[0].Used, uint32(10), "as the service has said last")
	require.Equal(t, held, explained().Rules[0].Lease, "explaining spends nothing")

	w.proxy.Clock += 20 * second
	x = explained()
	require.True(t, x.Pending)
	require.Zero(t, x.Rules[0].Lease.Units)
	require.NotEmpty(t, x.Rules[0].Windows, "it is still known what the service has said last")

	w.engine.Cluster.Service.Silent = true
	x = explained()
	require.False(t, x.Pending)
	require.True(t, *x.Allowed, "on_unavailable decides")
	require.Equal(t, &result.Lease{Silent: "local"}, x.Rules[0].Lease)
}

// While the service is silent a key's windows are shifted by its jitter, as the service
// shifts them.
func TestAShareIsOfTheKeysOwnWindows(t *testing.T) {
	w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":[{"requests":100,"per":"1h","jitter":50}]}`)
	w.engine.Cluster.Service.Silent = true
	w.proxy.With("u", "a")
	s := w.engine.Decide().Subjects[0]
	require.False(t, s.Denies())
	require.NotZero(t, s.Windows[0].OffsetNs)
	require.Equal(t, s.Windows[0].OffsetNs, s.CountedKey.Windows[0].OffsetNs)
}

// A record of an earlier start of the clock is written over by the next answer.
func TestARecordOfAnEarlierStartOfTheClockHeals(t *testing.T) {
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
	rules := hosttest.Policy(t, `{"name":"r",`+byUser+`,"limits":["100/1m"],"on_unavailable":"local"}`)
	for i, host := range hosts {
		w := &worker{t: t, proxy: proxy, random: uint32(i), users: map[uint32]string{}, verdicts: map[uint32]bool{}}
		w.engine = engine.New(rules, host, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
		w.engine.Cluster.Service.Silent = true
		w.client = talk.NewClient(w, w.engine.Cluster, 100*ms)
		workers = append(workers, w)
	}
	for range 5 {
		require.True(t, workers[0].verdicts[workers[0].request("a")])
	}
	require.True(t, workers[1].verdicts[workers[1].request("b")]) // finds the table
	hosts[1].old = []int64{proxy.Clock - 15*second}
	require.True(t, workers[1].verdicts[workers[1].request("a")])
	workers[0].engine.Cluster.Service.Silent = false
	workers[0].request("a")
	var m quota.Asks
	require.NoError(t, m.Decode(workers[0].stream.Asks[0]))
	require.EqualValues(t, 6, m.Asks[0].Parts[0].Uncharged)
}
