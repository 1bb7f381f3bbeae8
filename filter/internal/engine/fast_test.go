package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// withoutFast takes the fast path away.
func withoutFast(e *Engine) *Engine {
	for i := range e.rules {
		r := &e.rules[i]
		if r.fast, r.alone = nil, false; r.leases == nil && r.table != nil {
			r.units = &records{table: r.table}
		}
	}
	return e
}

// FuzzFast has two proxies decide the same requests, one without the fast path:
// verdicts, metrics, shared data and the calls to the host must be the same.
func FuzzFast(f *testing.F) {
	dice := rand.NewChaCha8([32]byte{1})
	for range 400 {
		data := make([]byte, 600)
		dice.Read(data)
		f.Add(data)
	}
	requests, fast := 0, 0
	f.Fuzz(func(t *testing.T, data []byte) {
		r, served := compareAll(t, hosttest.Tape(data))
		requests, fast = requests+r, fast+served
	})
	if requests > 0 { // none where other processes do the fuzzing
		f.Logf("%d random requests with and without the fast path, which served %d", requests, fast)
		require.Greater(f, fast, requests/5)
	}
}

func compareAll(t *testing.T, in hosttest.Tape) (requests, fast int) {
	rules := in.CommonRules()
	if in.Next()%3 == 0 {
		rules = in.Rules(in.Next()%2 == 0)
	}
	backwards := in.Next()%4 == 0
	a, b := hosttest.New(), hosttest.New()
	a.Clock, b.Clock = 1_700_000_000_123_456_789, 1_700_000_000_123_456_789
	with, without := compileJSON(t, a, rules), withoutFast(compileJSON(t, b, rules))
	operates := in.Next()%4 == 0
	for step := 0; step < 60 && len(in) > 0; step++ {
		in.Request(a, backwards)
		b.Headers, b.Client, b.Attributes, b.Clock = a.Headers, a.Client, a.Attributes, a.Clock
		if operates && in.Next()%4 == 0 {
			op := Operation{
				Name: hosttest.Pick(&in, Operations...), Rule: hosttest.Pick(&in, "r0", "r1", ""),
				N: hosttest.Pick(&in, uint32(0), 1, 5, 1<<32-1), Key: []string{hosttest.Pick(&in, "a", "b")},
			}
			_, failed := with.Operate(op)
			_, failedToo := without.Operate(op)
			require.Equal(t, failed == nil, failedToo == nil)
		}
		a.Steal = max(0, in.Next()-235)
		a.Fail = hosttest.Pick(&in, "", "", "", "", "", "", "", "", "", "", "", "get", "set")
		b.Steal, b.Fail = a.Steal, a.Fail
		a.Calls, b.Calls = nil, nil
		compare(t, with, without, rules)
		require.Equal(t, b.Calls, a.Calls, rules)
		require.Equal(t, b.Store, a.Store, rules)
		requests++
		if l := with.verdict.Attempts; len(l) > 0 && l[0].fast {
			fast++
		}
		a.Steal, b.Steal, a.Fail, b.Fail = 0, 0, "", ""
	}
	return requests, fast
}

func compare(t *testing.T, with, without *Engine, rules string) {
	t.Helper()
	have, want := with.Decide(), without.Decide()
	require.Equal(t, want.Allowed, have.Allowed, rules)
	require.Equal(t, []int64{want.Now, want.RetryNs, int64(want.Denied)}, []int64{have.Now, have.RetryNs, int64(have.Denied)}, rules)
	require.Len(t, have.Attempts, len(want.Attempts), rules)
	for i := range want.Attempts {
		require.Equal(t, said(want.Attempts[i]), said(have.Attempts[i]), rules)
	}
	for i := range without.rules {
		r, g := &with.rules[i], &without.rules[i]
		require.Equal(t, g.metrics, r.metrics, rules)
		require.Equal(t, g.spikes, r.spikes, rules)
	}
}

// told is what others may read of an attempt.
type told struct {
	key, keyText                                     string
	cost                                             uint32
	override                                         int
	shadow, unlimited, tooLong, known, allowed, done bool
	unreadable                                       bool
	reason                                           Reason
	passNs, now                                      int64
	fromFloor, evicted, rebased                      bool
	windows                                          []limit.Window
	usage                                            []limit.Usage
}

func said(a *Attempt) told {
	o := told{
		key: string(a.Key.Bytes), keyText: fmt.Sprint(a.Key.Parts), cost: a.Cost, unreadable: a.CostUnreadable, override: a.Override, shadow: a.Shadow,
		unlimited: a.Unlimited, tooLong: a.TooLong, known: a.Known, allowed: a.Allowed, done: a.counted, reason: a.Reason,
	}
	if !a.Allowed {
		o.passNs = a.passNs
	}
	if a.Known {
		o.now, o.fromFloor, o.evicted, o.rebased = a.Now(), a.entry.FromFloor, a.entry.Evicted, a.entry.Rebased
		for i := range a.rule.order {
			w, u := a.Window(i)
			o.windows, o.usage = append(o.windows, *w), append(o.usage, *u)
			if len(u.Log) == 0 { // nil or not, it holds nothing
				o.usage[i].Log = nil
			}
		}
	}
	return o
}

// TestFastDeclines shows a request of each kind that the fast path leaves alone.
func TestFastDeclines(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"capacity":2,"limits":["5/1h"]}`)
	p.Clock = 1_700_000_000_000_000_000
	ask := func(user string) bool {
		p.With("u", user)
		e.Decide()
		return e.verdict.Attempts[0].fast
	}
	require.False(t, ask("a"), "no page")
	require.True(t, ask("a"), "a record")
	require.True(t, ask("b"), "a free slot")
	require.False(t, ask("c"), "a full page")
	require.False(t, ask("d"), "a floor")
	require.True(t, ask("d"), "a record beside a floor")
	p.Clock -= int64(2 * 3_600_000_000_000)
	require.False(t, ask("d"), "a clock far behind")
	for _, rest := range []string{
		`"limits":["5/1h","5/2h","5/3h","5/4h"]`, `"limits":[{"requests":5,"per":"1h","jitter":3}]`, `"limits":["0/1h"]`,
		`"limits":[{"requests":5,"per":"1h","algorithm":"token_bucket"}]`, `"limits":[{"requests":5,"per":"1h","algorithm":"fixed_window_per_key","elastic":true}]`,
		`"limits":["5/1h"],"overrides":[{"key":["x"],"limits":["7/1h"]}]`,
	} {
		p = hosttest.New()
		e = compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],`+rest+`}`)
		ask("x")
		require.False(t, ask("x"), rest)
	}
}
