package quotaservice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestCountDeniedInShadow: a part in shadow that is denied counts where no other part
// denies the request.
func TestCountDeniedInShadow(t *testing.T) {
	b := newRig(t)
	tried, d := define(1, quota.LeaseOff, fixed(3, minute)), define(2, quota.LeaseOff, fixed(1, minute))
	tried.CountDenied = true
	p := b.proxy(b.service, tried, d)
	shadow := quota.Part{Definition: 1, Cost: 2, Waiting: 4, Shadow: true}
	p.ask(quota.Part{Definition: 1, Cost: 2})
	a := p.ask(shadow, quota.Part{Definition: 2, Cost: 1})
	require.Equal(t, quota.Granted, a.Result)
	require.Equal(t, quota.Grant{Denied: true, WaitNs: minute, Windows: []quota.Standing{{Used: 5, ResetNs: minute}}}, a.Grants[0])
	a = p.ask(shadow, quota.Part{Definition: 2, Cost: 1})
	require.Equal(t, quota.Denied, a.Result)
	require.EqualValues(t, 5, b.inspect(p).Used)
}

// TestCountDeniedInShadowTooLate: what is denied counts in no later window.
func TestCountDeniedInShadowTooLate(t *testing.T) {
	b := newRig(t)
	b.clock.now = 900 * ms
	tried := define(1, quota.LeaseOff, fixed(3, second))
	tried.CountDenied = true
	p := b.proxy(b.service, tried)
	p.ask(want(3))
	swaps := 0
	b.store.bend = func([]Swap, func(int, Result)) bool {
		if swaps++; swaps == 2 {
			b.clock.advance(200 * ms)
		}
		return false
	}
	a := p.ask(quota.Part{Definition: 1, Cost: 1, Waiting: 3, Shadow: true})
	require.Equal(t, quota.Granted, a.Result)
	require.True(t, a.Grants[0].Denied)
	require.Zero(t, b.inspect(p).Used)
}

// TestAFailedShadowPart: an error of the store for a part in shadow is told of that
// part; for another part it undoes the group.
func TestAFailedShadowPart(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)), define(2, quota.LeaseAuto, fixed(10, minute)))
	p.ask(want(4))
	for _, shard := range b.memory.values {
		for _, there := range shard.values {
			there.value[NonceBytes]++ // of a newer release
			there.value[0]++
		}
	}
	fails, works := want(1), quota.Part{Definition: 2, Cost: 1}
	fails.Shadow = true
	a := p.ask(fails, works)
	require.Equal(t, quota.Granted, a.Result)
	require.True(t, a.Grants[0].Failed)
	require.EqualValues(t, 1, b.service.count.mismatches.Load())
	require.EqualValues(t, 1, a.Grants[1].Units)

	fails.Shadow, works.Shadow = false, true
	require.Equal(t, quota.Unavailable, p.ask(fails, works).Result)
	works.Inspect = true
	require.EqualValues(t, 1, p.ask(works).Grants[0].Windows[0].Used, "undone")
}
