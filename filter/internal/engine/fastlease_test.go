package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// twins are two proxies that decide the same requests, the second one without the
// fast path, and hear the same of their quota service.
type twins struct {
	t       *testing.T
	dice    *rand.Rand
	rules   string
	proxies [2]*hosttest.Proxy
	engines [2]*Engine
	grants  uint32
	stream  uint32

	requests, fast int
}

func newTwins(t *testing.T, dice *rand.Rand) *twins {
	w := &twins{t: t, dice: dice, stream: 1}
	w.rules = fmt.Sprintf(`{"name":"r","scope":"cluster","key":[{"header":"u"}],"missing_key":"skip","limits":[%s],"capacity":%d,"cost":%d%s}`,
		pick(dice, `"50/1s"`, `"50/1m"`, `"50/1s","900/1h"`, `{"requests":50,"per":"1h","algorithm":"sliding_window_log"}`), pick(dice, 2, 65536, 65536), 1+dice.IntN(2),
		pick(dice, ``, ``, ``, ``, `,"on_unavailable":"deny"`, `,"on_unavailable":"allow"`, `,"on_error":"deny"`, `,"mode":"shadow"`, `,"lease":"off"`))
	for i := range w.engines {
		w.proxies[i] = hosttest.New()
		w.proxies[i].Clock = 1_700_000_000_123_456_789
		w.engines[i] = compileJSON(t, w.proxies[i], w.rules)
		w.engines[i].Quota = Quota{TimeoutNs: 100_000_000, Stream: 1}
	}
	withoutFast(w.engines[1])
	return w
}

func pick[T any](dice *rand.Rand, from ...T) T { return from[dice.IntN(len(from))] }

// both lets both proxies do something, and compares what came of it.
func (w *twins) both(do func(i int, e *Engine) any) {
	w.t.Helper()
	have, want := do(0, w.engines[0]), do(1, w.engines[1])
	require.Equal(w.t, want, have, w.rules)
	w.same()
}

// same compares what both have done to their hosts.
func (w *twins) same() {
	w.t.Helper()
	require.Equal(w.t, w.proxies[1].Calls, w.proxies[0].Calls, w.rules)
	require.Equal(w.t, w.proxies[1].Store, w.proxies[0].Store, w.rules)
}

// compare lets both decide the request at hand.
func (w *twins) compare() {
	compare(w.t, w.engines[0], w.engines[1], w.rules)
	require.Equal(w.t, w.engines[1].verdict.Pending, w.engines[0].verdict.Pending, w.rules)
	w.same()
}

// decide decides the request at hand, and answers what it asks for.
func (w *twins) decide() {
	w.compare()
	v := &w.engines[0].verdict
	w.requests++
	if len(v.Attempts) == 1 && v.Attempts[0].fast {
		w.fast++
	}
	for _, p := range w.proxies {
		p.Steal, p.Fail = 0, ""
	}
	waits := v.Pending
	wants := w.wants()
	if len(wants[0]) == 0 || w.dice.IntN(8) == 0 {
		return // or the answer is lost
	}
	answer := w.answer(wants[0][0].Part.Cost)
	for i, e := range w.engines {
		e.Receive(&wants[i][0], answer)
	}
	if waits {
		w.compare()
	}
	w.both(func(i int, e *Engine) any { return e.Settle(&wants[i][0], nil) })
}

// wants are what both have to ask for after they have decided.
func (w *twins) wants() (wants [2][]Want) {
	for i, e := range w.engines {
		if v := &e.verdict; v.Pending {
			wants[i] = v.Wants(nil)
		} else if v.WantsRefill() {
			wants[i] = v.Refills(nil)
		}
	}
	require.Len(w.t, wants[0], len(wants[1]), w.rules)
	for i := range wants[0] {
		require.Equal(w.t, wants[1][i].Part, wants[0][i].Part, w.rules)
	}
	return wants
}

func (w *twins) answer(cost uint32) Answer {
	a := Answer{SentNs: w.proxies[0].Clock - pick[int64](w.dice, 0, 0, 1_000_000), Stream: w.stream, Cost: cost}
	for range w.engines[0].definitions[0].Windows {
		a.Windows = append(a.Windows, quota.Standing{Used: uint32(w.dice.IntN(60)), ResetNs: w.dice.Int64N(1_000_000_000)})
	}
	switch w.dice.IntN(8) {
	case 0:
		a.Failed = true
	case 1:
		a.Denied, a.WaitNs = true, pick(w.dice, 20_000_000, 5_000_000_000, limit.Never)
	default:
		w.grants++
		a.Number, a.Units, a.Leased = w.grants, cost+uint32(w.dice.IntN(40)), w.dice.IntN(6) > 0
		a.ValidNs = pick[int64](w.dice, 50_000_000, 1_000_000_000, 10_000_000_000)
	}
	return a
}

// pass lets time pass, and things happen in it.
func (w *twins) pass() {
	ns := pick[int64](w.dice, 1_000, 1_000, 1_000_000, 1_000_000, 5_000_000, 50_000_000, 1_100_000_000)
	if w.dice.IntN(100) == 0 {
		ns = -20_000_000_000 // a clock of another epoch
	}
	for _, p := range w.proxies {
		p.Clock += ns
	}
	switch w.dice.IntN(20) {
	case 0:
		w.both(func(_ int, e *Engine) any { return e.Return(nil, w.stream, 3) })
	case 1:
		w.stream++
	case 2:
		silent := w.dice.IntN(4) == 0
		for _, e := range w.engines {
			e.Quota.Silent = silent
		}
	}
}

// The fast path of a rule that leases leaves verdicts, metrics, shared data and calls
// to the host as the general path does.
func TestFastLeases(t *testing.T) {
	requests, fast := 0, 0
	for seed := range uint64(300) {
		w := newTwins(t, rand.New(rand.NewPCG(seed, 0)))
		for range 60 {
			user := pick(w.dice, "a", "a", "a", "b", "c")
			steal, fail := pick(w.dice, 0, 0, 0, 0, 0, 0, 0, 1, 2, 300), pick(w.dice, "", "", "", "", "", "", "", "", "", "", "", "", "", "", "get", "set")
			for _, p := range w.proxies {
				p.With("u", user)
				p.Steal, p.Fail, p.Calls = steal, fail, nil
			}
			w.decide()
			w.pass()
		}
		requests, fast = requests+w.requests, fast+w.fast
	}
	t.Logf("%d random requests under a rule that leases, with and without the fast path, which served %d", requests, fast)
	require.Greater(t, fast, requests/5)
}

// A later configuration of fewer windows may have made the table, which then keeps no
// standing of the others.
func TestFastLeaseInATableOfFewerWindows(t *testing.T) {
	rule := func(limits string) string {
		return `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":[` + limits + `]}`
	}
	p := hosttest.New()
	p.Clock = 1_700_000_000_123_456_789
	p.With("u", "a")
	identity := Identity{Owner: 1, ConfiguredNs: p.Clock - 1e9, Random: func(b []byte) { clear(b) }}
	New(hosttest.Policy(t, rule(`"50/1s"`)), p, identity).Decide()
	identity.ConfiguredNs -= 1e9
	e := New(hosttest.Policy(t, rule(`"50/1s","500/1m","900/1h"`)), p, identity)
	e.Quota = Quota{TimeoutNs: 100_000_000, Stream: 1}
	v := e.Decide()
	require.True(t, v.Pending)
	wants := v.Wants(nil)
	grant := quota.Grant{Number: 1, Units: 20, Leased: true, ValidNs: 500_000_000, Windows: make([]quota.Standing, 3)}
	e.Receive(&wants[0], Answer{Grant: grant, SentNs: p.Clock, Stream: 1, Cost: 1})
	e.Decide()
	e.Settle(&wants[0], nil)
	v = e.Decide()
	require.True(t, v.Allowed)
	require.False(t, v.Attempts[0].Known)
}
