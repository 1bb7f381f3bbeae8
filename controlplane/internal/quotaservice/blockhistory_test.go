package quotaservice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestBlocksHoldOverAllProxies: while a key is blocked nobody gets a unit of it, and nobody is told that it is
// blocked who has not been denied for that long: whatever proxies of several policies ask of two
// services in turn, and whatever becomes of swaps, services and the store's clock.
func TestBlocksHoldOverAllProxies(t *testing.T) {
	runs := uint64(1500)
	if testing.Short() {
		runs /= 10
	}
	var seen blockCounts
	for seed := range runs {
		h := newBlockHistory(t, seed)
		for range 120 {
			h.step()
			require.NoError(t, h.wrong, "seed %d", seed)
		}
		seen.add(&h.blockCounts)
	}
	t.Logf("%d histories: %+v", runs, seen)
	for _, n := range [...]int{
		seen.begun, seen.blocked, seen.prolonged, seen.ended, seen.lost, seen.raced, seen.lifted,
	} {
		require.Greater(t, n, int(runs)/20, "%+v", seen)
	}
}

// blockCounts say what histories had.
type blockCounts struct{ begun, blocked, prolonged, ended, lifted, lost, raced int }

func (c *blockCounts) add(d *blockCounts) {
	c.begun += d.begun
	c.blocked += d.blocked
	c.prolonged += d.prolonged
	c.ended += d.ended
	c.lifted += d.lifted
	c.lost += d.lost
	c.raced += d.raced
}

// blockHistory is a short random history of proxies, two services and one store. An exact limiter knows when each
// key was denied, and for how long that blocks it.
type blockHistory struct {
	*rig
	r        *rand.Rand
	stepNs   int64 // how far the store's clock was set back in all
	steps    bool  // it is set back now and then
	changes  bool  // policies change now and then
	counts   bool  // policies count what is denied, and nobody holds units
	services [2]*Service
	asking   []*asking
	keys     [3]exactBlock
	fails    bool   // the next swap fails
	first    func() // happens before the next swap reaches the store
	racing   bool   // it happens now
	wrong    error
	blockCounts
}

// exactBlock is what is known of one key.
type exactBlock struct {
	endNs   int64 // by the store's clock; 0 = it is not blocked
	atLeast int64 // by the clock that nobody sets: until when it is blocked at least
	denied  bool  // it has been denied since it was reset
}

// asking is one worker. If its policy settles, it has an account of each key.
type asking struct {
	*proxy
	service  int
	block    *limit.Window // nil = its policy has none
	settles  bool
	worker   uint64
	number   uint64
	accounts [3]quota.Sums
}

func newBlockHistory(t testing.TB, seed uint64) *blockHistory {
	b := newRig(t)
	b.memory.Aged()
	h := &blockHistory{rig: b, r: rand.New(rand.NewPCG(seed, 0xb10c))}
	h.memory = swapstore.NewMemory(func() int64 { return base + h.clock.now - h.stepNs }).Aged()
	h.store.Store = h.memory
	h.steps, h.changes = h.r.IntN(3) == 0, h.r.IntN(2) == 0
	h.counts = h.r.IntN(4) == 0
	h.store.bend = h.bend
	for i := range h.services {
		h.restart(i)
	}
	for i := range 3 + h.r.IntN(3) {
		h.asking = append(h.asking, h.connect(i%2, nil))
	}
	return h
}

func (h *blockHistory) restart(i int) {
	first := h.first
	h.first = nil
	h.services[i] = h.another(int64(i) * 3600 * second)
	h.first = first
	for j, a := range h.asking {
		if a.service == i {
			a.Close()
			h.asking[j] = h.connect(i, a)
		}
	}
}

// connect opens a stream by a random policy, or by the policy of the stream before.
func (h *blockHistory) connect(service int, before *asking) *asking {
	a := &asking{service: service, worker: h.r.Uint64(), settles: !h.counts && h.r.IntN(2) == 0}
	switch {
	case before != nil:
		a.block, a.settles = before.block, before.settles
	case !h.changes && len(h.asking) > 0:
		a.block = h.asking[0].block
	case !h.changes || h.r.IntN(4) > 0:
		w := limit.NewBlock([]int64{5 * second, 40 * second, 90 * second}[h.r.IntN(3)], h.r.IntN(3) == 0)
		a.block = &w
	}
	shape := h.r.IntN(3)
	windows := slices.Clone([][]limit.Window{
		{fixed(3, 20*second)}, {perKey(2, 30*second)}, {logOf(3, 15*second), bucket(3, 20*second, 3)},
	}[shape])
	if a.block != nil {
		windows = append(windows, *a.block)
	}
	if a.settles {
		windows = append(windows, slots(0))
	}
	counts := define(1, quota.LeaseOff, windows...)
	counts.CountDenied = h.counts && shape < 2
	a.proxy = h.proxy(h.services[service], counts, define(2, quota.LeaseOff, fixed(1, 10*second)))
	return a
}

func (h *blockHistory) now() int64 { return base + h.clock.now - h.stepNs }

// bend lets something else happen before a swap, or has it fail: before the store has carried it out, or after.
func (h *blockHistory) bend(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
	if first := h.first; first != nil {
		h.first = nil
		first()
	}
	if !h.fails {
		return false
	}
	h.fails = false
	h.lost++
	carriedOut := func(_ int, _ swapstore.Result) {}
	if h.r.IntN(2) == 0 {
		h.memory.Swap(context.Background(), swaps, carriedOut)
	}
	for i := range swaps {
		done(i, swapstore.Result{Status: swapstore.Failed, Err: errors.New("lost")})
	}
	return true
}

func (h *blockHistory) step() {
	a := h.asking[h.r.IntN(len(h.asking))]
	key := h.r.IntN(len(h.keys))
	switch n := h.r.IntN(60); {
	case n < 16:
		h.clock.advance(h.r.Int64N(5 * second))
	case n < 17 && h.steps:
		h.stepNs += h.r.Int64N(200 * second)
	case n < 18:
		h.restart(h.r.IntN(2))
	case n < 20:
		h.asking[slices.Index(h.asking, a)] = h.connect(a.service, nil)
		a.Close()
	case n < 22:
		h.operate(a, key, &action.Reset{})
	case n < 23:
		h.operate(a, key, &action.Set{Window: action.AllWindows})
	case n < 30:
		a.settle(h.r, key)
	default:
		h.hit(a, key)
	}
}

// settle ends what the worker holds of a key: the next report says so.
func (a *asking) settle(r *rand.Rand, key int) {
	if acc := &a.accounts[key]; acc.Held() > 0 {
		acc.Settle(acc.Held(), r.Uint32N(acc.Held()+1))
	}
}

// operate resets a key or sets it, as an operator does.
func (h *blockHistory) operate(a *asking, key int, what action.Action) {
	d := define(1, quota.LeaseOff, fixed(3, 20*second))
	_, isReset := what.(*action.Reset)
	if !isReset && a.block != nil {
		d.Windows = append(d.Windows, *a.block)
	}
	_, err := h.services[a.service].Operate(h.t.Context(), "d", d, keyOf(key), what)
	require.NoError(h.t, err)
	if isReset {
		if h.keys[key].endNs > h.now() {
			h.lifted++
		}
		h.keys[key] = exactBlock{}
	}
}

func keyOf(key int) [16]byte { return [16]byte{1: byte(key)} }

// hit asks for units of a key, and judges the answer.
func (h *blockHistory) hit(a *asking, key int) {
	cost := h.r.Uint32N(4)
	p := quota.Part{Definition: 1, Key: keyOf(key), Cost: cost, Waiting: cost, Shadow: h.r.IntN(5) == 0}
	parts := []quota.Part{p}
	if h.r.IntN(3) == 0 { // another rule, which may deny
		parts = append(parts, quota.Part{Definition: 2, Key: keyOf(key), Cost: 1})
	}
	if a.settles {
		a.number++
		parts[0].Report = a.accounts[key].NewReport(a.worker, a.number, 0)
	}
	h.fails = h.r.IntN(25) == 0
	if other := h.asking[h.r.IntN(len(h.asking))]; !h.racing && other.service != a.service && h.r.IntN(4) == 0 {
		h.first = func() {
			h.racing = true
			h.hit(other, key)
			h.racing = false
			h.raced++
		}
	}
	answer := a.ask(parts...)
	h.fails, h.first = false, nil
	if len(answer.Grants) == 0 || answer.Grants[0].Failed {
		h.look(a.service, key) // the store may have it or not
		return
	}
	g := answer.Grants[0]
	if acc := &a.accounts[key]; a.settles && g.Noted && acc.NoteGrant(a.number, g.Units) {
		acc.Hold(g.Units)
	}
	if a.block != nil {
		h.judge(a, key, &parts[0], &g, answer.Outcome)
	}
}

// judge is the exact limiter's word on an answer.
func (h *blockHistory) judge(a *asking, key int, p *quota.Part, g *quota.Grant, outcome quota.Outcome) {
	k, now := &h.keys[key], h.now()
	runs := k.endNs > now
	if h.steps {
		runs = g.Blocked
		h.judgeRoughly(k, key, g)
	} else {
		h.judgeExactly(k, key, g)
	}
	if keeps(p, g, outcome) {
		h.keep(k, a.block, runs)
	}
	block := len(g.Windows) - 1
	if a.settles {
		block--
	}
	if left := max(k.endNs-now, 0); !h.steps && g.Windows[block].ResetNs != left {
		h.wrong = errors.Join(h.wrong, fmt.Errorf("key %d should be blocked for %d ms, and gets %+v", key, left/ms, g))
	}
}

// judgeRoughly is judge where the clock is set back: when a block ends is not known exactly.
func (h *blockHistory) judgeRoughly(k *exactBlock, key int, g *quota.Grant) {
	switch {
	case !g.Denied && h.clock.now < k.atLeast:
		h.wrong = fmt.Errorf("key %d passes, %d ms too early", key, (k.atLeast-h.clock.now)/ms)
	case g.Blocked && !k.denied:
		h.wrong = fmt.Errorf("key %d is blocked and was never denied", key)
	}
}

func (h *blockHistory) judgeExactly(k *exactBlock, key int, g *quota.Grant) {
	left := k.endNs - h.now()
	waits := g.Denied && g.Blocked && (g.WaitNs >= left || g.WaitNs == limit.Never)
	switch {
	case left > 0 && !waits:
		h.wrong = fmt.Errorf("key %d is blocked for %d ms more, and gets %+v", key, left/ms, g)
	case left <= 0 && g.Blocked:
		h.wrong = fmt.Errorf("key %d is not blocked, and gets %+v", key, g)
	}
	if k.endNs != 0 && left <= 0 {
		h.ended++
		k.endNs = 0
	}
}

// keeps reports whether the windows have denied the part, and the ask keeps that.
func keeps(p *quota.Part, g *quota.Grant, outcome quota.Outcome) bool {
	isHeld := g.HeldBack || g.WaitNs == limit.HeldRetryNs || p.Shadow && g.WaitNs == 0 // which is what others held
	return p.Cost > 0 && g.Denied && !isHeld && (!p.Shadow || outcome == quota.Granted)
}

// keep begins the key's block, or prolongs it.
func (h *blockHistory) keep(k *exactBlock, block *limit.Window, runs bool) {
	switch {
	case !runs:
		h.begun++
	case block.Elastic:
		h.prolonged++
	default:
		h.blocked++
		return
	}
	k.endNs, k.denied = max(k.endNs, h.now()+block.PeriodNs), true
	k.atLeast = max(k.atLeast, h.clock.now+block.PeriodNs-10*second) // a clock that was set back by less is not noticed
}

// look finds out how a key stands after an ask of which it is not known what became.
func (h *blockHistory) look(service, key int) {
	d := define(1, quota.LeaseOff, fixed(3, 20*second), limit.NewBlock(5*second, false))
	found, err := h.services[service].Operate(h.t.Context(), "d", d, keyOf(key), &action.Inspect{})
	require.NoError(h.t, err)
	k, now := &h.keys[key], h.now()
	left, were := found.Standings[1].ResetNs, max(k.endNs-now, 0)
	lengths := []int64{were}
	for _, a := range h.asking {
		if a.block != nil {
			lengths = append(lengths, a.block.PeriodNs)
		}
	}
	if !h.steps && !slices.Contains(lengths, left) {
		h.wrong = fmt.Errorf("key %d is blocked for %d ms after a failure, not for one of %d", key, left/ms, lengths)
	}
	if left > were || h.steps {
		k.endNs, k.denied = now+left, k.denied || left > 0
	}
}
