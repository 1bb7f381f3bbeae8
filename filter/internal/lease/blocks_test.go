package lease_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// blockTry is what a request comes to with a rule that blocks.
type blockTry struct {
	reason    string // of a denial
	waitNs    int64  // as Retry-After has it
	blockedNs int64  // as RateLimit has it
	asked     bool   // the service
}

// blocking is a worker with rules that block.
type blocking struct {
	*holding
	rules map[string]*decide.Rule
}

func newBlocking(t *testing.T, rules string) (*blocking, *service) {
	h, s := holdingPair(t, rules)
	b := &blocking{h, map[string]*decide.Rule{}}
	decided := h.onDecided
	h.onDecided = func(context uint32, v *decide.Verdict) {
		for _, of := range v.Subjects {
			b.rules[of.Rule.Policy.Name] = of.Rule
		}
		decided(context, v)
	}
	return b, s
}

// begun is how many blocks the worker has counted.
func (b *blocking) begun() (n int) {
	for _, r := range b.rules {
		n += int(r.Metrics.BlocksBegun)
	}
	return n
}

// tries returns what has requests tried one after the other. Each one that is allowed is charged 1 at once.
func tries(t *testing.T, rules string) (h *blocking, s *service, try func(user string) blockTry) {
	h, s = newBlocking(t, rules)
	var got blockTry
	decided := h.onDecided
	h.onDecided = func(context uint32, v *decide.Verdict) {
		of := v.Subjects[0]
		got = blockTry{reason: of.Reason(), waitNs: v.RetryNs, blockedNs: of.BlockedNs(h.proxy.Clock)}
		decided(context, v)
	}
	return h, s, func(user string) blockTry {
		asked := s.asked
		id := h.request(user)
		h.exchange(s)
		require.Contains(t, h.verdicts, id)
		got.asked = s.asked > asked
		h.answer(id, 1)
		h.exchange(s)
		return got
	}
}

const blockedUser = byUser + `,"on_unavailable":"deny","limits":["3/1m"],"cost":{"header":"v","min":0,"max":9}`

// blockRules are the ways in which requests of a blocked key ask.
var blockRules = map[string]string{
	"for units to spend": `{"name":"r",` + blockedUser + `,"block":"1h"}`,
	"for units to hold":  `{"name":"r",` + blockedUser + `,"block":"1h","settle":{},"hold":"80s"}`,
}

// TestARuleWithABlockLeasesNothing: what a lease remembers of a block, and forgets by units, rests on that. Each
// request asks, and package policy has said so of the rule.
func TestARuleWithABlockLeasesNothing(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			h, _, try := tries(t, strings.Replace(rule, "3/1m", "1000/1m", 1))
			for range 3 {
				require.Equal(t, blockTry{asked: true}, try("a 1"))
			}
			require.EqualValues(t, quota.LeaseOff, h.rules["r"].Policy.Lease)
		})
	}
}

// TestAWorkerRemembersABlock for a second at most, and never for longer than it lasts.
func TestAWorkerRemembersABlock(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			h, _, try := tries(t, rule)
			for range 3 {
				require.Empty(t, try("a 1").reason)
			}
			require.Equal(t, blockTry{"limit", hour, hour, true}, try("a 1"))
			require.Equal(t, 1, h.begun())
			h.proxy.Clock += 300 * ms
			rest := hour - 300*ms
			for _, cost := range []string{"1", "9", "0"} {
				got := try("a " + cost)
				got.waitNs = rest // a cost above the limit never passes
				require.Equal(t, blockTry{"blocked", rest, rest, false}, got, "cost %s", cost)
			}
			h.proxy.Clock += 700 * ms
			rest -= 700 * ms
			require.Equal(t, blockTry{"blocked", rest, rest, true}, try("a 0"), "whatever it costs")
			require.Empty(t, try("b 0").reason)

			h.proxy.Clock += rest - 100*ms
			require.Equal(t, blockTry{"blocked", 100 * ms, 100 * ms, true}, try("a 1"))
			h.proxy.Clock += 100 * ms
			require.Equal(t, blockTry{asked: true}, try("a 1"))
			require.Equal(t, 1, h.begun())
		})
	}
}

// TestABlockOfAKeyThatMayUseNothing: a request that costs nothing is denied by the block while that lasts, and by the
// limit of 0 afterwards.
func TestABlockOfAKeyThatMayUseNothing(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			h, _, try := tries(t, strings.Replace(rule, "3/1m", "0/1m", 1))
			require.Equal(t, "limit", try("a 0").reason)
			require.Equal(t, "limit", try("a 1").reason)
			h.proxy.Clock += 2000 * ms
			require.Equal(t, "blocked", try("a 0").reason)
			h.proxy.Clock += hour
			require.Equal(t, "limit", try("a 0").reason)
			require.Equal(t, 1, h.begun())

			for _, unavailable := range []string{"deny", "allow", "local"} {
				h, _, try := tries(t, strings.NewReplacer("3/1m", "0/1m", `"deny"`, `"`+unavailable+`"`).Replace(rule))
				h.engine.Cluster.Service.Silent = true
				h.down = true
				require.Equal(t, "limit", try("a 0").reason, unavailable)
			}
		})
	}
}

// TestAWorkerForgetsABlockThatHasEnded: also if the key's windows still deny it, which begins another one.
func TestAWorkerForgetsABlockThatHasEnded(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			h, _, try := tries(t, strings.Replace(rule, "3/1m", "3/1d", 1))
			for range 4 {
				try("a 1")
			}
			h.proxy.Clock += hour - 100*ms
			require.Equal(t, "blocked", try("a 1").reason)
			h.proxy.Clock += 100 * ms
			got := try("a 1")
			require.Equal(t, []any{"limit", hour, true}, []any{got.reason, got.blockedNs, got.asked})
			require.Equal(t, 2, h.begun())
		})
	}
}

// A request waits for another rule while its worker remembers that the key is blocked for a shadow rule. Once the
// answer is there, each rule is decided by what is known then: the worker asks again if it does not remember the block
// any more.
func TestABlockIsRecalledWhenARequestGoesOn(t *testing.T) {
	rules := `{"name":"trial","mode":"shadow","counter":"t",` + blockedUser + `,"block":"1h","settle":{},"hold":"80s"},` +
		`{"name":"r",` + byUser + `,"limits":["100/1m"],"lease":"off"}`
	for afterNs, asks := range map[int64]int{0: 1, 949 * ms: 1, 950 * ms: 2} { // after the block has begun
		h, s := newBlocking(t, rules)
		for range 4 {
			id := h.request("a 1")
			h.exchange(s)
			h.answer(id, 1)
			h.exchange(s)
		}
		trial := h.rules["trial"]
		require.EqualValues(t, 1, trial.Metrics.ShadowDenied)
		h.proxy.Clock += afterNs
		asked, id := s.asked, h.request("a 1")
		h.proxy.Clock += 50 * ms
		h.exchange(s)
		require.True(t, h.verdicts[id])
		require.Equal(t, asks, s.asked-asked, "after %d ms", afterNs/ms)
		require.EqualValues(t, 2, trial.Metrics.ShadowDenied)
	}
}

// TestABlockOfAnotherPolicy lasts as long as that one said, also for a worker whose blocks are shorter.
func TestABlockOfAnotherPolicy(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			h, s, try := tries(t, rule)
			for range 4 {
				try("a 1")
			}
			other := newHolding(t, h.proxy, strings.Replace(rule, `"1h"`, `"5s"`, 1), 2)
			left := int64(0)
			other.onDecided = func(_ uint32, v *decide.Verdict) { left = v.Subjects[0].BlockedNs(h.proxy.Clock) }
			other.request("a 1")
			other.exchange(s)
			require.Equal(t, hour, left)
		})
	}
}

// TestEachDenialThatProlongsABlockAsks: so does each one that counts.
func TestEachDenialThatProlongsABlockAsks(t *testing.T) {
	counted := strings.Replace(blockRules["for units to spend"], `"block"`, `"count_denied":true,"block"`, 1)
	for name, rule := range map[string]string{
		"prolonged": strings.Replace(blockRules["for units to spend"], `"1h"`, `{"for":"1h","prolong":true}`, 1),
		"held":      strings.Replace(blockRules["for units to hold"], `"1h"`, `{"for":"1h","prolong":true}`, 1),
		"counted":   counted,
	} {
		t.Run(name, func(t *testing.T) {
			h, s, try := tries(t, rule)
			for range 4 {
				try("a 1")
			}
			h.proxy.Clock += 300 * ms
			got := try("a 1")
			require.Equal(t, "blocked", got.reason)
			require.True(t, got.asked)
			require.Equal(t, name == "counted", got.blockedNs == hour-300*ms)
			if name == "counted" {
				require.EqualValues(t, 5, s.used(), "at most a limit for each denial: 3 and 2")
			}
		})
	}
}

// TestABlockBesideRequestsThatWait: of several requests of one ask that is denied, one begins the block.
func TestABlockBesideRequestsThatWait(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			h, s, try := tries(t, rule)
			for range 3 {
				try("a 1")
			}
			reasons := map[string]int{}
			decided := h.onDecided
			h.onDecided = func(context uint32, v *decide.Verdict) {
				reasons[v.Subjects[0].Reason()]++
				decided(context, v)
			}
			for range 5 {
				h.request("a 1")
			}
			h.exchange(s)
			require.Equal(t, map[string]int{"limit": 1, "blocked": 4}, reasons)
			require.Equal(t, 1, h.begun())
		})
	}
}

// TestABlockWhileTheServiceIsSilent: the proxy blocks by its own share, and the service hears only of what was
// admitted.
func TestABlockWhileTheServiceIsSilent(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			h, s, try := tries(t, strings.Replace(rule, `"deny"`, `"local"`, 1))
			h.engine.Cluster.Service.Silent = true
			h.down = true
			require.Equal(t, blockTry{}, try("a 1"))
			require.Equal(t, blockTry{"limit", limit.Never, hour, false}, try("a 9"))
			require.Equal(t, 1, h.begun())
			h.proxy.Clock += minute
			require.Equal(t, blockTry{"blocked", hour - minute, hour - minute, false}, try("a 1"))
			h.engine.Cluster.Service.Silent = false
			h.down = false
			h.proxy.Clock += second
			h.tick()
			h.exchange(s)
			require.Empty(t, try("a 1").reason, "the block is the proxy's own")
			h.tick()
			h.exchange(s)
			require.EqualValues(t, 2, s.used(), "the denied ones are not charged")
		})
	}
}

// TestATrialBlocksNobody: a rule in shadow mode that shares its counter with one that enforces.
func TestATrialBlocksNobody(t *testing.T) {
	for name, rule := range blockRules {
		t.Run(name, func(t *testing.T) {
			counter := strings.Replace(rule, `"name":"r"`, `"name":"trial","mode":"shadow","counter":"c"`, 1)
			counter = strings.Replace(counter, `"3/1m"`, `"1/1m"`, 1)
			rules := counter + "," + strings.Replace(rule, `"name":"r"`, `"name":"enforces","counter":"c"`, 1)
			h, s := newBlocking(t, rules)
			allowed := 0
			for range 3 {
				id := h.request("a 1")
				h.exchange(s)
				if h.verdicts[id] {
					allowed++
				}
				h.answer(id, 1)
				h.exchange(s)
			}
			require.Positive(t, allowed)
			require.Zero(t, h.begun())
		})
	}
}

// TestATrialThatJoinsAReportBlocksNobody: the report was queued while no stream could be opened, and a request of the
// trial asks for the same key. The rule that enforces does not match the request.
func TestATrialThatJoinsAReportBlocksNobody(t *testing.T) {
	rule := `{"name":"trial","mode":"shadow","counter":"c",` + byUser + `,"limits":["1/1m"],"block":"1h","settle":{}}`
	enforces := strings.Replace(rule, `"name":"trial","mode":"shadow"`, `"name":"r","match":{"headers":{"v":"x"}}`, 1)
	h, s := newBlocking(t, rule+","+strings.Replace(enforces, "1/1m", "3/1m", 1))
	first := h.request("a 1")
	h.exchange(s)
	h.down = true
	h.stream = nil
	h.client.StreamEnded(h.proxy.Clock)
	h.proxy.Clock += 50 * ms
	h.answer(first, 1) // queues the report
	h.down = false
	second := h.request("a 1")
	h.proxy.Clock += 50 * ms
	h.tick()
	h.exchange(s)
	require.True(t, h.verdicts[second])
	require.EqualValues(t, 1, h.rules["trial"].Metrics.ShadowDenied)
	require.Zero(t, h.begun())
	h.answer(second, 0)
	h.exchange(s)
	third := h.request("a x")
	h.exchange(s)
	require.True(t, h.verdicts[third], "the key is not blocked")
}

// A worker takes up an answer a while after it came, as when a message has many. It remembers a denial until its wait
// is over, as counted from when the answer came.
func TestADenialIsRememberedNoLongerThanItsWait(t *testing.T) {
	const waitNs, later = 100, 10
	w, _ := pair(t, perUser)
	w.onDecided = func(_ uint32, v *decide.Verdict) { require.EqualValues(t, 1, v.RetryNs) }
	w.request("a")
	came := w.proxy.Clock
	w.proxy.Clock += later
	m := quota.Results{Results: []quota.AskResult{{
		ID: w.lastID, Outcome: quota.Denied, Grants: []quota.Grant{{Denied: true, WaitNs: waitNs}},
	}}}
	require.NoError(t, w.client.Receive(m.Append(nil), came))
	w.proxy.Clock = came + waitNs - 1
	w.request("a")
	require.Len(t, w.verdicts, 1, "the denial is remembered")
	for range later + 1 {
		w.proxy.Clock++
		w.request("a")
		require.Len(t, w.verdicts, 1, "the denial is over")
	}
}

// Two workers ask for one key at once, and both are denied. The greater cost must wait for longer, but the smaller one
// is not denied for that long.
func TestADenialOfAGreaterCostDelaysNoSmallerOne(t *testing.T) {
	const rules = `{"name":"r",` + byUser + `,"on_unavailable":"deny","algorithm":"token_bucket",` +
		`"limits":["10/10s"],"cost":{"header":"v","min":0,"max":9}}`
	w, s := pair(t, rules)
	other := newWorker(t, w.proxy, rules, 2)
	for range 9 {
		w.request("a 1")
		w.exchange(s)
	}
	w.request("a 1") // it passes in 100 ms
	other.request("a 9")
	w.exchange(s)
	other.exchange(s)
	require.Equal(t, 9, w.admitted())
	require.Zero(t, other.admitted())
	w.proxy.Clock += 200 * ms
	id := w.request("a 1")
	w.exchange(s)
	require.True(t, w.verdicts[id])
}
