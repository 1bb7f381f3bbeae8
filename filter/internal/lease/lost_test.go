package lease_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// lost is how many leased units the worker has counted as lost.
func (w *worker) lost() (units uint64) {
	w.engine.EachMetric(func(m engine.Series, count uint64) {
		if m.Metric == "leased_units_lost" {
			units += count
		}
	})
	return units
}

// grant has the worker's newest ask be granted so many units for so long. The request that waits goes on by goOn.
func (w *worker) grant(units uint32, validNs int64, leased bool) {
	w.receiveGrant(quota.Grant{Number: 1, Units: units, ValidNs: validNs, Leased: leased})
}

func (w *worker) receiveGrant(g quota.Grant) {
	g.Windows = []quota.Standing{{Used: g.Units}}
	m := quota.Results{Results: []quota.AskResult{
		{ID: w.lastID, Outcome: quota.Granted, Grants: []quota.Grant{g}},
	}}
	require.NoError(w.t, w.client.Receive(m.Append(nil), w.proxy.Clock))
}

// withUnitsOfAnEndedStream returns a worker whose key a has a lease of 4 units for 10 s. Their stream has ended.
func withUnitsOfAnEndedStream(t *testing.T) *worker {
	w, _ := pair(t, perUser)
	w.request("a")
	w.grant(5, 10*second, true)
	w.goOn()
	w.client.StreamEnded(w.proxy.Clock)
	return w
}

// Units whose lease ends after their stream can be spent until then. The rest is lost.
func TestUnitsOfAnEndedStreamAreLostWhenTheirLeaseEnds(t *testing.T) {
	w := withUnitsOfAnEndedStream(t)
	require.True(t, w.verdicts[w.request("a")])
	w.proxy.Clock += 10*second - 1
	w.tick()
	require.Zero(t, w.lost())
	require.True(t, w.verdicts[w.request("a")])
	w.proxy.Clock++
	w.tick()
	require.EqualValues(t, 2, w.lost())
	w.proxy.Clock += 10 * second
	w.tick()
	require.EqualValues(t, 2, w.lost(), "they are counted once")
}

// Ticks come each 10 ms while a request waits. One that finds units idle whose stream has ended leaves them in the
// lease, and the next ticks do not read them each time.
func TestATickReadsIdleUnitsOfAnEndedStreamOnceASecond(t *testing.T) {
	w := withUnitsOfAnEndedStream(t)
	w.proxy.Clock += 5 * second
	w.proxy.Calls = nil
	for range 100 {
		w.proxy.Clock += 10 * ms
		w.tick()
	}
	require.LessOrEqual(t, count(w.proxy.Calls, "get"), 2)
}

// A broken service gives its grants no numbers, so it cannot take their units back. Requests may spend them until their
// time is over, also once they are idle.
func TestUnitsWithoutANumberStayInTheLease(t *testing.T) {
	w, _ := pair(t, perUser)
	w.request("a")
	w.receiveGrant(quota.Grant{Units: 5, ValidNs: 10 * second, Leased: true})
	w.goOn()
	for range 9 {
		w.proxy.Clock += second
		w.tick()
	}
	require.Zero(t, w.lost())
	require.True(t, w.verdicts[w.request("a")])
	w.proxy.Clock += second
	w.tick()
	require.EqualValues(t, 3, w.lost())
}

// A broken service gives two grants of one stream no number. The units of each may be spent until its own end.
func TestUnitsOfTwoGrantsWithoutANumberStayApart(t *testing.T) {
	for _, c := range []struct {
		firstNs, nextNs int64 // for how long they are valid
		later           bool  // a request finds units of the next grant after 2 s
	}{{second, 10 * second, true}, {10 * second, second, false}} {
		w, _ := pair(t, perUser)
		w.request("a")
		w.receiveGrant(quota.Grant{Units: 2, ValidNs: c.firstNs, Leased: true})
		w.goOn()
		w.request("a") // takes the last unit, and asks ahead
		w.receiveGrant(quota.Grant{Units: 3, ValidNs: c.nextNs, Leased: true})
		w.proxy.Clock += 2 * second
		require.Equal(t, c.later, w.verdicts[w.request("a")])
	}
}

// A request gets a unit, its stream ends, and its client leaves.
func TestAUnitThatARequestLeavesAfterItsStreamIsLost(t *testing.T) {
	w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":["100/1m"],"lease":"off"}`)
	id := w.request("a")
	w.grant(1, 10*second, false)
	w.client.StreamEnded(w.proxy.Clock)
	w.client.Forget(id)
	require.EqualValues(t, 1, w.lost())
}

// A request has got a unit of one rule, and waits for another rule. Meanwhile the units that its grant left in the
// lease are idle, or are spent, and then its client leaves.
func TestAUnitThatARequestLeavesGoesBackByItself(t *testing.T) {
	for _, validNs := range []int64{100 * ms, second} {
		w, id := waitingWithAUnit(t, validNs)
		w.passTime()
		require.Equal(t, []quota.Return{{Grant: 7, Units: 4}}, w.returned())
		w.client.Forget(id)
		w.passTime()
		require.Equal(t, []quota.Return{{Grant: 7, Units: 4}, {Grant: 7, Units: 1}}, w.returned())
		require.Zero(t, w.lost())
	}
	w, id := waitingWithAUnit(t, second)
	for range 4 {
		require.True(t, w.verdicts[w.request("a")])
	}
	w.client.Forget(id)
	w.passTime()
	require.Equal(t, []quota.Return{{Grant: 7, Units: 1}}, w.returned())
	require.Zero(t, w.lost())
}

// twoRules are one for each request, and one for those that have v.
const twoRules = `{"name":"r",` + byUser + `,"limits":["100/1s"]},` +
	`{"name":"other","scope":"cluster","key":[{"header":"v"}],"missing_key":"skip","limits":["9/1m"]}`

// waitingWithAUnit returns a worker whose grant 7 has left 4 units in the lease of key a. A request has got the fifth,
// and waits for the other rule.
func waitingWithAUnit(t *testing.T, validNs int64) (w *worker, request uint32) {
	w, _ = pair(t, twoRules)
	w.engine.Cluster.Service.TimeoutNs = second
	request = w.request("a v")
	granted := quota.Grant{Number: 7, Units: 5, ValidNs: validNs, Leased: true, Windows: []quota.Standing{{Used: 5}}}
	tooFew := quota.Grant{Number: 8, Windows: []quota.Standing{{}}}
	m := quota.Results{Results: []quota.AskResult{
		{ID: w.lastID, Outcome: quota.Granted, Grants: []quota.Grant{granted, tooFew}},
	}}
	w.receive(m.Append(nil))
	require.NotContains(t, w.verdicts, request)
	return w, request
}

// passTime lets four times as long pass as it takes until units are idle.
func (w *worker) passTime() {
	for range 40 {
		w.proxy.Clock += 5 * ms
		w.tick()
		said := quota.Results{Proxies: 1} // keeps the service from being silent
		w.receive(said.Append(nil))
	}
}

// returned is what the worker has returned.
func (w *worker) returned() (returned []quota.Return) {
	for _, message := range w.stream.Asks {
		var asks quota.Asks
		require.NoError(w.t, asks.Decode(message))
		returned = append(returned, asks.Returns...)
	}
	return returned
}

// Units that are to go back with the next message are lost if the stream ends before.
func TestUnitsThatHaveNotLeftWithTheirStreamAreLost(t *testing.T) {
	w, _ := pair(t, perUser)
	w.request("a")
	w.grant(5, 0, true) // their time is over when they come
	require.Zero(t, w.lost())
	w.client.StreamEnded(w.proxy.Clock)
	require.EqualValues(t, 5, w.lost())
}

// The message that takes them back is the first that cannot be sent.
func TestUnitsOfAMessageThatIsNotSentAreLost(t *testing.T) {
	w, _ := pair(t, perUser)
	w.request("a")
	w.grant(5, 0, true) // their time is over when they come
	w.broken = true
	w.client.Flush(w.proxy.Clock)
	require.EqualValues(t, 5, w.lost())
}

// A request leaves its unit while the service owes an answer to another ask, and then the configuration ends.
func TestUnitsThatHaveNotLeftWithTheirConfigurationAreLost(t *testing.T) {
	w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":["100/1m"],"lease":"off"}`)
	id := w.request("a")
	w.grant(1, 10*second, false)
	w.request("b")
	w.client.Forget(id)
	w.client.Flush(w.proxy.Clock)
	require.Zero(t, w.lost())
	w.client.Close(w.proxy.Clock)
	require.EqualValues(t, 1, w.lost())
}

// A request takes the last unit of its worker's grant, and then a rule denies it. Meanwhile another worker's grant has
// taken the emptied place in the lease, so the unit goes into the place of units that are stranded.
func TestARefundCountsTheUnitsWhosePlaceItTakes(t *testing.T) {
	const rules = `{"name":"r",` + byUser + `,"missing_key":"skip","limits":["500/1m"],"lease":20},` +
		`{"name":"last","key":[{"header":"v"}],"missing_key":"skip","limits":["1/1m"]}`
	w, _ := pair(t, rules)
	other := func(seed uint32) *worker {
		o := newWorker(t, w.proxy, rules, seed)
		o.request("a")
		return o
	}
	other(2).grant(6, second, true) // stranded: its request keeps 1 of the units, and nobody takes the others
	w.proxy.Clock += 4 * second
	third := other(3)
	fourth := other(4)
	fifth := other(5)
	w.request("a other") // which makes the table of the last rule
	third.grant(6, 9*second, true)
	fourth.grant(6, 9*second, true)
	w.grant(2, 5*second, true) // ends first, so the next request takes of it
	w.goOn()
	w.proxy.After = func(string) { // the next request has taken of the lease
		w.proxy.After = nil
		fifth.grant(6, 9*second, true)
		w.proxy.Headers = map[string][]string{"v": {"v"}}
		require.True(t, fifth.engine.Decide().Allowed)
	}
	id := w.request("a v")
	require.Contains(t, w.verdicts, id)
	require.False(t, w.verdicts[id])
	require.EqualValues(t, 5, w.lost())
}

// refundOfTwoGrants has a request take the last unit of grant 1 of its worker w and two of grant 1 of the other worker,
// and then a rule deny it. In between it calls meanwhile. The units are of a rule with that limit.
func refundOfTwoGrants(t *testing.T, limit string, meanwhile func(w *worker)) (w, other *worker) {
	rules := `{"name":"r",` + byUser + `,"missing_key":"skip","limits":["` + limit + `"],"cost":{"header":"v"}},` +
		`{"name":"last","key":[{"header":"v"}],"missing_key":"skip","limits":["1/1m"]}`
	w, _ = pair(t, rules)
	other = newWorker(t, w.proxy, rules, 2)
	third := newWorker(t, w.proxy, rules, 3)
	passesLast := func(v string) {
		w.proxy.Headers = map[string][]string{"v": {v}}
		require.True(t, third.engine.Decide().Allowed)
	}
	passesLast("other") // makes the table
	w.request("a")
	other.request("a")
	w.grant(2, 800*ms, true) // of which the request keeps 1
	w.goOn()
	other.grant(3, 900*ms, true)
	other.goOn()
	w.proxy.After = func(string) { // the next request has taken of the lease
		w.proxy.After = nil
		meanwhile(w)
		passesLast("3")
	}
	id := w.request("a 3")
	require.Contains(t, w.verdicts, id)
	require.False(t, w.verdicts[id])
	return w, other
}

// Meanwhile a tick has found nothing left of its worker's grant. Each worker returns the units of its own grant all the
// same.
func TestUnitsThatARefundPutsBackGoBack(t *testing.T) {
	w, other := refundOfTwoGrants(t, "100/1s", (*worker).passTime)
	w.passTime()
	other.passTime()
	require.Equal(t, []quota.Return{{Grant: 1, Units: 1}}, w.returned())
	require.Equal(t, []quota.Return{{Grant: 1, Units: 2}}, other.returned())
}

// Units that a refund puts back may be of another worker's grant. At its end these go back by that worker, who has got
// them, even if the one that has refunded them looks first: it could only lose them.
func TestARefundLeavesUnitsOfAnotherWorkersGrantToIt(t *testing.T) {
	w, other := refundOfTwoGrants(t, "100/1h", func(*worker) {})
	w.proxy.Clock += second
	said := quota.Results{Proxies: 1} // keeps the service from being silent
	w.receive(said.Append(nil))
	w.tick()
	other.tick()
	require.Equal(t, []quota.Return{{Grant: 1, Units: 1}}, w.returned())
	require.Equal(t, []quota.Return{{Grant: 1, Units: 2}}, other.returned())
	require.Zero(t, w.lost())
}
