package lease_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// The service may be silent to a worker that has asked ahead and of which no request waits: it is cut
// off, and admits its share more.
func TestSilenceForWhichNobodyHasWaited(t *testing.T) {
	w, s := pair(t, strings.Replace(perUser, `"limits"`, `"on_unavailable":"local","limits"`, 1))
	w.engine.Cluster.SetProxies(2)
	w.request("a")
	w.exchange(s)
	asked := w.lastID
	for w.lastID == asked { // of the lease, until it asks for more
		w.request("a")
	}
	for range 10 {
		require.False(t, w.engine.Cluster.Service.Silent)
		w.proxy.Clock += 10 * ms
		w.tick()
	}
	require.True(t, w.engine.Cluster.Service.Silent)
	require.Len(t, w.verdicts, w.admitted(), "all were admitted at once")
	for range 200 {
		w.request("a")
	}
	require.Equal(t, 1+50+50, w.admitted(), "what was asked for, the lease, and the share")
}

func TestWhatANewerServiceSaysIsNotAGrant(t *testing.T) {
	w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"],"on_unavailable":"deny"}`)
	first := w.request("a")
	m := quota.Results{Results: []quota.AskResult{{
		ID: w.lastID, Outcome: quota.Busy + 1,
		Grants: []quota.Grant{{Number: 1, Units: 50, ValidNs: second, Windows: []quota.Standing{{}}}},
	}}}
	w.receive(m.Append(nil))
	require.Contains(t, w.verdicts, first)
	require.False(t, w.verdicts[first])
	require.False(t, w.verdicts[w.request("a")], "for a second nobody asks again")
}

func TestALateAnswerCounts(t *testing.T) {
	w, s := pair(t, perUser)
	w.request("b")
	w.exchange(s)
	first := w.request("a")
	late := w.stream
	s.serve(late)
	w.request("c") // keeps the service from being silent
	w.proxy.Clock += 50 * ms
	require.Len(t, late.Answers, 1)
	answer := late.Answers[0]
	late.Answers = nil
	said := quota.Results{Proxies: 2}
	w.receive(said.Append(nil))
	w.proxy.Clock += 60 * ms
	w.tick()
	require.Contains(t, w.verdicts, first)
	w.exchange(s)
	asked := w.lastID
	w.request("a")
	require.Greater(t, w.lastID, asked, "the key is asked for again")
	w.receive(answer)
	require.True(t, w.verdicts[w.request("a")], "the unit of the late answer is used")
}

// A late answer says how the key stood before the requests came that are queued for it by then. Its own ask has none
// any more.
func TestALateAnswerDecidesNoRequestThatCameLater(t *testing.T) {
	for name, late := range map[string]quota.AskResult{
		"denied":      {Outcome: quota.Denied, Grants: []quota.Grant{{Denied: true, WaitNs: second}}},
		"busy":        {Outcome: quota.Busy},
		"unavailable": {Outcome: quota.Unavailable, Grants: []quota.Grant{{Failed: true}}},
	} {
		w, s := pair(t, strings.Replace(noLease, `"limits"`, `"on_unavailable":"deny","on_contention":"deny","limits"`, 1))
		w.request("b")
		w.exchange(s)
		first := w.request("a")
		late.ID = w.lastID
		w.stream.Asks = nil // the service does not answer it in time
		w.request("b")
		w.proxy.Clock += 50 * ms
		w.receive((&quota.Results{Proxies: 2}).Append(nil)) // so b is asked for, and the service is not silent
		w.proxy.Clock += 60 * ms
		w.tick()
		require.False(t, w.verdicts[first], name)

		second := w.request("a")
		w.receive((&quota.Results{Results: []quota.AskResult{late}}).Append(nil))
		require.NotContains(t, w.verdicts, second, name)
		w.exchange(s)
		require.True(t, w.verdicts[second], name)
	}
}

// A late answer comes after that to a later ask. What it says of the key is older, so nobody remembers it.
func TestALateAnswerSaysNothingOfItsKey(t *testing.T) {
	for name, late := range map[string]quota.Grant{
		"denied":      {Denied: true, WaitNs: second},
		"unavailable": {Failed: true},
	} {
		w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":["9/1m"],"on_unavailable":"deny"}`)
		w.request("a")
		w.stream.Asks = nil // the service does not answer it in time
		result := quota.AskResult{ID: w.lastID, Outcome: quota.Unavailable, Grants: []quota.Grant{late}}
		w.proxy.Clock += 50 * ms
		w.receive((&quota.Results{Proxies: 2}).Append(nil)) // the service is not silent
		w.proxy.Clock += 60 * ms
		w.tick()

		w.request("a")
		w.grant(1, second, false)
		w.goOn()
		w.receive((&quota.Results{Results: []quota.AskResult{result}}).Append(nil))
		next := w.request("a")
		require.NotContains(t, w.verdicts, next, name)
		w.grant(1, second, false)
		w.goOn()
		require.True(t, w.verdicts[next], name)
	}
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
		granted := quota.Grant{Number: uint32(n + 1), Units: 1, ValidNs: second, Windows: []quota.Standing{{Used: 1}}}
		grants := []quota.Grant{granted, {Failed: true}}
		answered := quota.AskResult{ID: m.Asks[0].ID, Outcome: quota.Granted, Grants: grants[:parts]}
		answers := quota.Results{Results: []quota.AskResult{answered}}
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
		const rule = `{"name":"r",` + byUser + `,"lease":"off","limits":["9/1m"],"cost":{"header":"v","max":9}`
		w, s := pair(t, rule+c.rest+`}`)
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
	for rest, asks := range map[string]int{
		`,"count_denied":true`: 1, `,"count_denied":true,"mode":"shadow"`: 1, ``: 0,
	} {
		w, _ := pair(t, `{"name":"r","scope":"cluster","lease":"off","key":[{"header":"u"}],"limits":["9/1m"]`+rest+`}`)
		w.request("a")
		w.request("a")
		denied := quota.Results{Results: []quota.AskResult{{
			ID: 1, Outcome: quota.Denied,
			Grants: []quota.Grant{{Denied: true, WaitNs: second, Windows: []quota.Standing{{Used: 9}}}},
		}}}
		if strings.Contains(rest, "shadow") {
			denied.Results[0].Outcome = quota.Granted
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

// Two requests are ready, and the grant has a unit for one of them, when their configuration ends. The other one has
// nobody to wait for any more.
func TestRequestsThatAreReadyWhenTheConfigurationEndsAreDecided(t *testing.T) {
	w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":["9/1m"],"lease":"off","on_unavailable":"deny"}`)
	other := w.request("b") // while its message is under way, the next ask gathers both
	first, second := w.request("a"), w.request("a")
	w.grant(1, 10*ms, false)
	w.goOn()
	w.grant(1, 10*ms, false)
	require.Equal(t, map[uint32]bool{other: true}, w.verdicts)
	w.end()
	require.Equal(t, map[uint32]bool{other: true, first: true, second: false}, w.verdicts)
	require.False(t, w.client.HasWaiters())
}

// Nobody is asked again for a look whose client has left, or has waited for too long.
func TestALookThatIsOverIsNotAskedAgain(t *testing.T) {
	for _, end := range []string{"", "left", "expired"} {
		w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["9/1m"]}`)
		w.proxy.Headers = map[string][]string{"u": {"a"}}
		look := &lease.Look{}
		look.AddKey(w.engine.Decide().Subjects[0])
		require.True(t, w.client.WaitLook(1, look, w.proxy.Clock))
		w.client.Flush(w.proxy.Clock)
		require.Len(t, w.stream.Asks, 1)
		switch end {
		case "left":
			w.client.Forget(1)
		case "expired":
			w.client.ExpireAll()
		}
		w.client.StreamEnded(w.proxy.Clock)
		w.proxy.Clock += second
		w.client.Flush(w.proxy.Clock)
		require.Equal(t, end == "", w.opened == 2, end)
	}
}
