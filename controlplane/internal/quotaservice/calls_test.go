package quotaservice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// counterOf makes a counter of calls.
func counterOf(t *testing.T, windows ...limit.Window) *Counter {
	t.Helper()
	c, err := NewCounter("d", [16]byte{7}, windows)
	require.NoError(t, err)
	return c
}

// count counts a call whose uses are all of keys of one counter.
func (b *rig) count(c *Counter, keep func([]Total) bool, uses ...Use) []Total {
	b.t.Helper()
	for i := range uses {
		uses[i].Counter = c
	}
	totals, err := b.service.Count(b.t.Context(), uses, keep)
	require.NoError(b.t, err)
	return totals
}

func under(key string, units uint32) Use { return Use{Key: []byte(key), Units: units} }

// TestCount: the uses of a call count also where they are too much, each under its key.
func TestCount(t *testing.T) {
	b := newRig(t)
	c := counterOf(t, fixed(10, minute))
	for _, step := range []struct {
		units      uint32
		over       bool
		used       uint32
		remembered bool
	}{
		{units: 0, used: 0},
		{units: 4, used: 4},
		{units: 6, used: 10},
		{units: 0, used: 10}, // all is used, but no more than that
		{units: 3, used: 13, over: true},
		{units: 1, used: 10, over: true, remembered: true},
		{units: 0, used: 10, over: true, remembered: true},
	} {
		total := b.count(c, nil, under("a", step.units))[0]
		require.Equal(t, step.over, total.Over, "%+v", step)
		require.Equal(t, step.remembered, total.Remembered, "%+v", step)
		require.Equal(t, step.used, total.Windows[0].Used, "%+v", step)
		if step.over {
			require.EqualValues(t, minute, total.Windows[0].ResetNs, "%+v", step)
		}
	}
	totals := b.count(c, nil, under("b", 1), under("a", 1), under("b", 2))
	require.Equal(t, []bool{false, true, false}, []bool{totals[0].Over, totals[1].Over, totals[2].Over})
	require.EqualValues(t, 3, totals[2].Windows[0].Used, "one key twice")
	b.clock.advance(minute)
	require.EqualValues(t, 1, b.count(c, nil, under("a", 1))[0].Windows[0].Used, "the next window")
}

// TestCountRemembers: what is over its limit asks the store no more until the window ends, and
// nothing else is remembered.
func TestCountRemembers(t *testing.T) {
	b := newRig(t)
	short, long := counterOf(t, fixed(10, minute)), counterOf(t, fixed(10, minute), fixed(20, hour))
	b.count(short, nil, under("a", 11))
	before := b.store.swaps.Load()
	for range 5 {
		require.True(t, b.count(short, nil, under("a", 1))[0].Remembered)
	}
	require.Equal(t, before, b.store.swaps.Load())
	b.count(long, nil, under("b", 21))
	b.clock.advance(59 * minute)
	require.True(t, b.count(long, nil, under("b", 1))[0].Remembered, "the longest of those that are over")
	b.clock.advance(minute)
	require.False(t, b.count(long, nil, under("b", 1))[0].Over)
	for _, w := range []limit.Window{
		bucket(10, minute, 10), {Algorithm: limit.SlidingWindowCounter, Limit: 10, PeriodNs: minute}} {
		c := counterOf(t, w)
		b.count(c, nil, under("c", 11))
		require.False(t, b.count(c, nil, under("c", 11))[0].Remembered, "%+v", w)
	}
	raised := counterOf(t, fixed(20, minute))
	b.count(short, nil, under("d", 11))
	require.False(t, b.count(raised, nil, under("d", 1))[0].Over, "a raised limit is in force at once")
	require.True(t, b.count(short, nil, under("d", 1))[0].Remembered)
	perKey := counterOf(t, limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: 10, PeriodNs: minute})
	b.count(perKey, nil, under("e", 11))
	require.True(t, b.count(perKey, nil, under("e", 1))[0].Remembered)
	over, windows := b.service.core.over, perKey.Windows()
	over[[16]byte{1}] = fullWindow{windows[0], base + hour}
	_, isKnown := over.recall([16]byte{1}, windows, base+hour-minute)
	require.True(t, isKnown)
	_, isKnown = over.recall([16]byte{1}, windows, base)
	require.False(t, isKnown, "the store's clock was set back")
}

// TestCountRemembersBounded: what is remembered is bounded, and what has ended makes room first.
func TestCountRemembersBounded(t *testing.T) {
	b := newRig(t)
	over := b.service.core.over
	windows := counterOf(t, fixed(10, minute)).Windows()
	note := func(key [16]byte, nowNs int64) {
		over.note(key, windows, &action.Outcome{NowNs: nowNs, Standings: []quota.Standing{{Used: 11, ResetNs: minute}}})
	}
	for i := range maxOver {
		note([16]byte{byte(i), byte(i >> 8), byte(i >> 16), 1}, base)
	}
	require.Len(t, over, maxOver)
	note([16]byte{}, base+minute/2)
	require.Len(t, over, 1, "none of them has ended")
	note([16]byte{1}, base+2*minute)
	require.Len(t, over, 2)
	for i := range maxOver - 2 {
		note([16]byte{byte(i), byte(i >> 8), byte(i >> 16), 2}, base+2*minute)
	}
	require.Len(t, over, maxOver)
	// One has ended: too few to look through all again soon.
	note([16]byte{3}, base+3*minute-minute/2)
	require.Len(t, over, 1)
}

// TestCountOthers: the other algorithms count what is too much up to a bound, and a look says
// whether something is left.
func TestCountOthers(t *testing.T) {
	for name, w := range map[string]limit.Window{
		"bucket":  bucket(10, minute, 10),
		"counter": {Algorithm: limit.SlidingWindowCounter, Limit: 10, PeriodNs: minute},
		"log":     {Algorithm: limit.SlidingWindowLog, Limit: 10, PeriodNs: minute, Units: 10},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRig(t)
			c := counterOf(t, w)
			require.False(t, b.count(c, nil, under("a", 0))[0].Over)
			require.False(t, b.count(c, nil, under("a", 9))[0].Over)
			require.False(t, b.count(c, nil, under("a", 0))[0].Over)
			require.True(t, b.count(c, nil, under("a", 4_000_000_000))[0].Over)
			require.True(t, b.count(c, nil, under("a", 0))[0].Over)
			b.clock.advance(4 * minute)
			require.False(t, b.count(c, nil, under("a", 1))[0].Over, "a wrong number is forgotten")
		})
	}
}

// TestCountAllOrNone: with keep a call that is too much counts nowhere.
func TestCountAllOrNone(t *testing.T) {
	b := newRig(t)
	c := counterOf(t, fixed(10, minute))
	isWithin := func(totals []Total) bool {
		for _, total := range totals {
			if total.Over {
				return false
			}
		}
		return true
	}
	anyway := func([]Total) bool { return true }
	b.count(c, isWithin, under("a", 10), under("b", 4))
	totals := b.count(c, isWithin, under("a", 1), under("b", 6))
	require.True(t, totals[0].Over)
	require.False(t, totals[1].Over)
	require.EqualValues(t, 10, b.count(c, anyway, under("a", 0))[0].Windows[0].Used)
	require.EqualValues(t, 4, b.count(c, anyway, under("b", 0))[0].Windows[0].Used)
	require.False(t, b.count(c, isWithin, under("b", 6))[0].Over)
	totals = b.count(c, anyway, under("b", 1), under("c", 1))
	require.True(t, totals[0].Over)
	require.EqualValues(t, 10, b.count(c, anyway, under("b", 0))[0].Windows[0].Used, "what is too much counts nowhere")
	require.EqualValues(t, 1, b.count(c, anyway, under("c", 0))[0].Windows[0].Used)
}

// TestCountFails: a call whose store does not answer ends with an error, and with keep nothing of it
// stays counted.
func TestCountFails(t *testing.T) {
	b := newRig(t)
	c := counterOf(t, fixed(10, minute))
	broken := errors.New("broken")
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		for i := range swaps {
			if len(swaps) > 1 && i == 0 {
				done(i, swapstore.Result{Status: swapstore.Failed, Err: broken})
				continue
			}
			b.memory.Swap(t.Context(), swaps[i:i+1], func(_ int, r swapstore.Result) { done(i, r) })
		}
		return true
	}
	uses := []Use{{c, []byte("a"), 1}, {c, []byte("b"), 1}}
	_, err := b.service.Count(t.Context(), uses, func([]Total) bool { return true })
	require.ErrorIs(t, err, broken)
	anyway := func([]Total) bool { return true }
	require.Zero(t, b.count(c, anyway, under("b", 0))[0].Windows[0].Used)
	b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool { return true } // it never answers
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.service.Count(gone, uses, nil)
	require.ErrorIs(t, err, context.Canceled)
	b.service.Close()
	_, err = b.service.Count(t.Context(), uses, nil)
	require.ErrorIs(t, err, ErrClosed)
}

// TestADeniedCallIsDeniedThoughItsUndoFails: what is decided is no error, which a proxy may let pass.
func TestADeniedCallIsDeniedThoughItsUndoFails(t *testing.T) {
	b := newRig(t)
	user, team := counterOf(t, fixed(10, minute)), counterOf(t, bucket(100, minute, 100))
	unlessOver := func(totals []Total) bool { return !totals[0].Over && !totals[1].Over }
	b.count(team, nil, under("other", 1)) // by now the service knows the store's clock
	hits := 2
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		hits -= len(swaps)
		if hits >= 0 {
			return false
		}
		done(0, swapstore.Result{Status: swapstore.Failed, Err: errors.New("cut")})
		return true
	}
	uses := []Use{{user, []byte("user"), 11}, {team, []byte("team"), 3}}
	totals, err := b.service.Count(t.Context(), uses, unlessOver)
	require.NoError(t, err)
	require.True(t, totals[0].Over)
	require.EqualValues(t, 3, totals[1].Windows[0].Used, "as the key stood last as far as is known")
	require.EqualValues(t, 3, b.service.metrics.unitsLost.Load(), "they count until their window ends")
}

// TestAnUndoneCallTellsHowKeysStand: also of a key that several of its uses have, whether they were denied or not.
func TestAnUndoneCallTellsHowKeysStand(t *testing.T) {
	b := newRig(t)
	c := counterOf(t, fixed(10, minute))
	b.count(c, func([]Total) bool { return true }, under("a", 4))
	none := func([]Total) bool { return false }
	totals := b.count(c, none, under("a", 2), under("b", 11), under("a", 3), under("a", 9))
	require.Equal(t, []bool{false, true, false, true},
		[]bool{totals[0].Over, totals[1].Over, totals[2].Over, totals[3].Over})
	for i, used := range []uint32{4, 0, 4, 4} {
		require.Equal(t, used, totals[i].Windows[0].Used, "use %d", i)
	}
}

// TestAnUndoneCallTellsHowKeysStandInOtherWindows: the last undo of the key may be of another use with other windows.
func TestAnUndoneCallTellsHowKeysStandInOtherWindows(t *testing.T) {
	b := newRig(t)
	ofMinute, ofHour := counterOf(t, fixed(10, minute)), counterOf(t, fixed(10, hour))
	uses := []Use{{ofMinute, []byte("a"), 1}, {ofMinute, []byte("a"), 2}, {ofHour, []byte("a"), 4}}
	totals, err := b.service.Count(t.Context(), uses, func([]Total) bool { return false })
	require.NoError(t, err)
	for i, total := range totals {
		require.Zero(t, total.Windows[0].Used, "use %d", i)
	}
}

// TestCountInTheNextWindow: what reaches the store after its window has ended counts in the next one.
func TestCountInTheNextWindow(t *testing.T) {
	b := newRig(t)
	c := counterOf(t, fixed(10, minute))
	b.count(c, nil, under("a", 4))
	b.clock.advance(minute - 1)
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		b.clock.now += 2
		return false
	}
	require.EqualValues(t, 3, b.count(c, nil, under("a", 3))[0].Windows[0].Used)
	b.store.bend = nil
	require.EqualValues(t, 5, b.count(c, nil, under("a", 2))[0].Windows[0].Used)
	many := make([]Use, maxLate+1)
	for i := range many {
		many[i] = under(fmt.Sprint("key ", i), 1)
	}
	b.clock.advance(minute - 3)
	b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool {
		b.clock.now += 4
		b.store.bend = nil
		return false
	}
	for _, total := range b.count(c, nil, many...) {
		require.EqualValues(t, 1, total.Windows[0].Used, "each of many may come too late")
	}
	b.store.bend = func(_ []swapstore.Swap, done func(int, swapstore.Result)) bool {
		done(0, swapstore.Result{Status: swapstore.Late, NowNs: base + b.clock.now})
		return true
	}
	_, err := b.service.Count(t.Context(), []Use{{c, []byte("a"), 1}}, nil)
	require.ErrorIs(t, err, errEnded, "it does not go on for ever")
}

// TestCountRefuses: what no call can count in.
func TestCountRefuses(t *testing.T) {
	for want, windows := range map[string][]limit.Window{
		"no window":  {},
		"hold units": {{Algorithm: limit.Concurrency, Limit: 1, PeriodNs: limit.MinHoldNs}},
		"1 ms":       {fixed(1, 10)},
		"jitter":     {{Algorithm: limit.FixedWindow, Limit: 1, PeriodNs: minute, Jitter: 10}},
	} {
		_, err := NewCounter("d", [16]byte{}, windows)
		require.ErrorContains(t, err, want)
	}
}

// TestCountTogether: calls of two services at once count what they have, and pass no more than the
// limits have.
func TestCountTogether(t *testing.T) {
	b := newRig(t)
	others := b.another(3 * second)
	c := counterOf(t, fixed(100, minute))
	dice := rand.New(rand.NewPCG(1, 2))
	counted, passed := map[string]uint32{}, map[string]uint32{}
	for range 2000 {
		service := b.service
		if dice.IntN(2) == 0 {
			service = others
		}
		uses := make([]Use, 1+dice.IntN(3))
		for i := range uses {
			uses[i] = Use{c, fmt.Append(nil, "key", dice.IntN(6)), uint32(dice.IntN(4))}
		}
		totals, err := service.Count(t.Context(), uses, nil)
		require.NoError(t, err)
		for i, total := range totals {
			key, units := string(uses[i].Key), uses[i].Units
			isOver := counted[key]+units > 100
			require.Equal(t, isOver, total.Over)
			if !total.Remembered {
				counted[key] += units
				require.Equal(t, counted[key], total.Windows[0].Used)
			}
			if !isOver {
				passed[key] += units
			}
		}
	}
	for key := range passed {
		require.LessOrEqual(t, passed[key], uint32(100), key)
	}
}
