package action

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const second = minute / 60

// asks is a part of a worker's first message about the key.
func asks(worker uint64, cost uint32) quota.Part {
	return quota.Part{Cost: cost, Waiting: cost, Report: quota.Report{Worker: worker, Since: 1, Number: 1}}
}

// TestTakeHold: what comes of a hit whose units are held, 10 a minute and 4 at once.
func TestTakeHold(t *testing.T) {
	windows := []limit.Window{
		{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: minute},
		{Algorithm: limit.Concurrency, Limit: 4, PeriodNs: 80 * second},
	}
	d, err := NewTerms(&quota.Definition{Windows: windows, Lease: quota.LeaseOff})
	require.NoError(t, err)
	reports := asks(1, 0)
	reports.Charged, reports.Number = 3, 2
	inspects := quota.Part{Cost: 4, Inspect: true}
	const valid = 10 * second // an eighth of the hold
	heldBack := balance.Denial{Denied: true, HeldBack: true, WaitNs: limit.HeldRetryNs}
	for _, c := range []struct {
		name             string
		before           quota.Part // of an earlier hit
		used             uint32     // of the window, before
		part             quota.Part
		startingNs       int64
		want             Effect
		usedAfter, holds uint32
	}{
		{name: "held", part: asks(1, 4), holds: 4,
			want: Effect{Noted: true, NeedsAge: true, Taken: Taken{Units: 4, ValidNs: valid}}},
		{name: "noted", before: asks(1, 4), part: reports, usedAfter: 3,
			want: Effect{Noted: true, Taken: Taken{ValidNs: valid}}},
		{name: "stale", before: asks(1, 2), part: asks(1, 2), holds: 2, want: Effect{Err: balance.ErrStale}},
		{name: "starting", part: asks(1, 4), startingNs: second,
			want: Effect{Noted: true, Err: ErrStarting, StartsInNs: second, Taken: Taken{ValidNs: valid}}},
		{name: "held back", before: asks(2, 3), part: asks(1, 2), holds: 3,
			want: Effect{Noted: true, Denial: heldBack, Taken: Taken{ValidNs: valid}}},
		{name: "denied", used: 9, usedAfter: 9, part: asks(1, 2),
			want: Effect{Noted: true, Denial: balance.Denial{Denied: true, WaitNs: minute}, Taken: Taken{ValidNs: valid}}},
		{name: "too much for ever", part: asks(1, 5),
			want: Effect{Noted: true, Denial: balance.Denial{Denied: true, WaitNs: limit.Never}, Taken: Taken{ValidNs: valid}}},
		{name: "an operator's", before: asks(2, 2), part: quota.Part{Cost: 2}, usedAfter: 2, holds: 2,
			want: Effect{NeedsAge: true, Taken: Taken{Units: 2, ValidNs: minute / 600}}},
		{name: "an operator's, held back", before: asks(2, 2), part: quota.Part{Cost: 3}, holds: 2,
			want: Effect{Denial: heldBack}},
		{name: "only looks", before: asks(2, 2), part: inspects, holds: 2, want: Effect{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := balance.NewRecord(base)
			on(r, d, &Set{Units: c.used, Window: 0})
			if c.before.Number > 0 {
				require.NoError(t, on(r, d, d.ActionFor(&c.before)).Outcome.Err)
			}
			o := onStarting(r, d, d.ActionFor(&c.part), c.startingNs)
			require.Equal(t, []uint32{c.usedAfter, c.holds}, []uint32{o.Outcome.Standings[0].Used, o.Outcome.Standings[1].Used})
			c.want.Taken.Counted = o.Outcome.Taken.Counted
			require.Equal(t, c.want, o.Outcome.Effect)
		})
	}
}

// TestAMisplacedHoldIsKnown: nobody is told to look for a newer release because of it.
func TestAMisplacedHoldIsKnown(t *testing.T) {
	_, err := NewTerms(&quota.Definition{Lease: quota.LeaseOff, Windows: []limit.Window{
		{Algorithm: limit.Concurrency, Limit: 4, PeriodNs: 80 * second},
		{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: minute},
	}})
	require.EqualError(t, err, "a hold does not come after all other windows")
}

// TestAnInspectSaysWhatAHitWould: also of a key of which workers hold units by another policy. The key's window of 10
// has 8 left, and 5 of these are held.
func TestAnInspectSaysWhatAHitWould(t *testing.T) {
	for units := range uint32(12) {
		r, d := balance.NewRecord(base), tenAMinute()
		on(r, d, &Set{Units: 2, Window: AllWindows})
		r.Holders = balance.Holders{{Worker: 1, Held: 5, NotedNs: base, HoldNs: minute}}
		inspect := on(r, d, &Inspect{Units: units})
		hit := on(r, d, &Hit{Part: &quota.Part{Cost: units}})
		require.Equal(t, units > 3, hit.Outcome.Denied, units)
		require.Equal(t, hit.Outcome.Denied, inspect.Outcome.Denied, units)
		require.Equal(t, hit.Outcome.WaitNs, inspect.Outcome.WaitNs, units)
	}
}

// TestADenialByOtherHoldsCountsInShadowToo: workers hold 5 of 10 units by another policy, and 2 are used. So 4 are
// denied, although 8 are left by what has been counted.
func TestADenialByOtherHoldsCountsInShadowToo(t *testing.T) {
	d := tenAMinute()
	d.CountDenied = true
	deny := func(inShadow bool) (*balance.Record, *decided) {
		r := balance.NewRecord(base)
		on(r, d, &Set{Units: 2, Window: AllWindows})
		r.Holders = balance.Holders{{Worker: 1, Held: 5, NotedNs: base, HoldNs: minute}}
		return r, on(r, d, &Hit{Part: &quota.Part{Cost: 4, Shadow: inShadow}})
	}
	want := func(used uint32, waitNs int64, o *decided) {
		require.True(t, o.Outcome.Denied)
		require.False(t, o.Outcome.HeldBack, "the definition itself holds nothing")
		require.Equal(t, waitNs, o.Outcome.WaitNs)
		require.Equal(t, used, o.Outcome.Standings[0].Used)
	}
	_, enforced := deny(false)
	want(6, limit.HeldRetryNs, enforced)
	r, hit := deny(true)
	want(2, limit.HeldRetryNs, hit)
	want(6, limit.HeldRetryNs, on(r, d, hit.keepDenial()))

	r, hit = deny(true)
	r.Holders = nil
	want(2, 0, on(r, d, hit.keepDenial())) // it would pass by now
}

// TestWhatIsTooMuchForEverNeverPasses: 2 units may be held at once, so a cost of 3 can never be held. If the window of
// 10 has 1 left, the cost begins the key's block, and does not pass once the block ends.
func TestWhatIsTooMuchForEverNeverPasses(t *testing.T) {
	d, err := NewTerms(&quota.Definition{Lease: quota.LeaseOff, Windows: []limit.Window{
		{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: minute},
		limit.NewBlock(minute, false),
		{Algorithm: limit.Concurrency, Limit: 2, PeriodNs: 80 * second},
	}})
	require.NoError(t, err)
	part := asks(1, 3)
	for name, a := range map[string]Action{
		"hold": &Hold{&part}, "take": &Take{Units: 3}, "kept": &keepDenial{part: &part},
	} {
		for _, left := range []uint32{1, 5} {
			r := balance.NewRecord(base)
			on(r, d, &Set{Units: 10 - left, Window: 0})
			o := on(r, d, a)
			require.True(t, o.Outcome.Denied, name)
			require.Equal(t, limit.Never, o.Outcome.WaitNs, "%s, %d left", name, left)
			require.Equal(t, left < 3, on(r, d, &Inspect{Units: 3}).Outcome.Blocked, "%s, %d left", name, left)
		}
	}
}
