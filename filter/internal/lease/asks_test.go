package lease_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/talk"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// The service may be silent to a worker that has asked ahead and of which no request waits: it is cut
// off, and admits its share more.
func TestSilenceForWhichNobodyHasWaited(t *testing.T) {
	w, s := pair(t, strings.Replace(perUser, `"limits"`, `"on_unavailable":"local","limits"`, 1))
	w.engine.Leases.SetProxies(2)
	w.request("a")
	w.exchange(s)
	asked := w.lastID
	for w.lastID == asked { // of the lease, until it asks for more
		w.request("a")
	}
	for range 10 {
		require.False(t, w.engine.Leases.IsSilent())
		w.proxy.Clock += 10 * ms
		w.tick()
	}
	require.True(t, w.engine.Leases.IsSilent())
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
		w.engine.Leases.Service.Silent = true
		w.client = talk.NewClient(w, w.engine.Leases, 100*ms)
		workers = append(workers, w)
	}
	for range 5 {
		require.True(t, workers[0].verdicts[workers[0].request("a")])
	}
	require.True(t, workers[1].verdicts[workers[1].request("b")]) // finds the table
	hosts[1].old = []int64{proxy.Clock - 15*second}
	require.True(t, workers[1].verdicts[workers[1].request("a")])
	workers[0].engine.Leases.Service.Silent = false
	workers[0].request("a")
	var m quota.Asks
	require.NoError(t, m.Decode(workers[0].stream.Asks[0]))
	require.EqualValues(t, 6, m.Asks[0].Parts[0].Spent)
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
		w, s := pair(t, `{"name":"r",`+byUser+`,"lease":"off","limits":["9/1m"],"cost":{"header":"v","max":9}`+c.rest+`}`)
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

// brokenTimes are what a broken service may answer.
var brokenTimes = []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 61, limit.MaxPeriodNs, 1, 0, -2, math.MinInt64}

// Whatever times a broken service answers, no wait and no reset is longer than the rule's
// windows can take, also as the denial is remembered.
func TestTimesOfABrokenServiceAreBounded(t *testing.T) {
	for rule, most := range map[string]int64{
		`"limits":["10/1m"]`:                                                          60_000 * ms,
		`"limits":["10/1m","50/1h"]`:                                                  3_600_000 * ms,
		`"algorithm":"sliding_window_log","limits":["10/1m"]`:                         60_600 * ms,
		`"algorithm":"sliding_window_counter","limits":["10/1m"]`:                     120_000 * ms,
		`"limits":[{"requests":10,"per":"1m","burst":20,"algorithm":"token_bucket"}]`: 241_200 * ms,
	} {
		for _, answered := range brokenTimes {
			w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],`+rule+`}`)
			w.request("a")
			windows := []quota.Standing{{Used: 10, ResetNs: answered}, {Used: 10, ResetNs: answered}}
			m := quota.Results{Proxies: math.MaxUint32, Results: []quota.AskResult{{
				ID: w.lastID, Outcome: quota.Denied,
				Grants: []quota.Grant{{Denied: true, WaitNs: answered, ValidNs: answered, Windows: windows}},
			}}}
			check := func(v *decide.Verdict) bool {
				if v.Pending { // it is not remembered
					return false
				}
				require.False(t, v.Allowed)
				require.Positive(t, v.RetryNs, "%s: %d", rule, answered)
				require.LessOrEqual(t, v.RetryNs, most, "%s: %d", rule, answered)
				view, known := v.Subjects[0].View()
				require.True(t, known)
				window, usage := view.Window(0)
				require.LessOrEqual(t, window.Reset(usage, v.Now)-v.Now, most, "%s: %d", rule, answered)
				return true
			}
			w.onResume = func(v *decide.Verdict) { require.True(t, check(v)) }
			w.receive(m.Append(nil))
			w.proxy.Clock += 500 * ms
			w.proxy.Headers = map[string][]string{"u": {"a"}}
			require.Equal(t, answered > second, check(w.engine.Decide()), "remembered")
		}
	}
}

// TestWindowsAreTheServicesWord: how a key stands is told as the service has said it, whatever this proxy's clock says.
func TestWindowsAreTheServicesWord(t *testing.T) {
	dice := rand.New(rand.NewPCG(5, 5))
	for _, rule := range []string{
		`"limits":["10/1m"]`, `"limits":["10/1m"],"algorithm":"fixed_window_per_key"`,
		`"limits":["10/1m"],"algorithm":"sliding_window_log"`, `"limits":["10/1m"],"algorithm":"sliding_window_counter"`,
		`"limits":["10/1m"],"algorithm":"token_bucket"`, `"limits":["10/1m"],"settle":{}`,
	} {
		for range 50 {
			w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],`+rule+`}`)
			w.proxy.Clock += dice.Int64N(60 * second)
			w.request("a")
			said := quota.Standing{Used: 1 + dice.Uint32N(12), ResetNs: 1 + dice.Int64N(60*second)}
			held := quota.Standing{Used: dice.Uint32N(3)}
			m := quota.Results{Results: []quota.AskResult{{ID: w.lastID, Outcome: quota.Denied, Grants: []quota.Grant{{
				Denied: true, Noted: true, WaitNs: second, Windows: []quota.Standing{said, held},
			}}}}}
			told := []result.Window{}
			w.onResume = func(v *decide.Verdict) { told = respond.Windows(v.Subjects[0], v.Now) }
			w.receive(m.Append(nil))
			require.Len(t, told, 1)
			left := 10 - min(10, said.Used)
			if strings.Contains(rule, "settle") {
				left -= min(left, held.Used)
			}
			got := quota.Standing{Used: told[0].Used, ResetNs: told[0].ResetNs}
			require.Equal(t, said, got, rule)
			require.Equal(t, left, *told[0].Remaining, rule)
		}
	}
}

// A debt is paid in many windows: its wait is told as it is, up to the longest window of a policy.
func TestAWaitForADebtIsToldAsItIs(t *testing.T) {
	for answered, told := range map[int64]int64{
		480_000 * ms: 480_000 * ms, limit.MaxPeriodNs + 1: limit.MaxPeriodNs, math.MaxInt64: limit.MaxPeriodNs,
	} {
		w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"settle":{},"limits":["10/1m"]}`)
		w.request("a")
		windows := []quota.Standing{{Used: 80, ResetNs: answered}, {}}
		m := quota.Results{Results: []quota.AskResult{{
			ID: w.lastID, Outcome: quota.Denied,
			Grants: []quota.Grant{{Denied: true, Noted: true, WaitNs: answered, Windows: windows}},
		}}}
		resumed := false
		w.onResume = func(v *decide.Verdict) {
			resumed = true
			require.Equal(t, told, v.RetryNs)
		}
		w.receive(m.Append(nil))
		require.True(t, resumed)
	}
}

// Nobody is asked again for a look whose client has left, or has waited for too long.
func TestALookThatIsOverIsNotAskedAgain(t *testing.T) {
	for _, end := range []string{"", "left", "expired"} {
		w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["9/1m"]}`)
		w.proxy.Headers = map[string][]string{"u": {"a"}}
		look := &lease.Look{}
		look.Add(w.engine.Decide().Subjects[0])
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
