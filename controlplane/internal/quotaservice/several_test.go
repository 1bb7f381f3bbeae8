package quotaservice

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestContention: a service that loses a key to others many times in a row goes on,
// but not for ever.
func TestContention(t *testing.T) {
	for name, c := range map[string]struct {
		max    int // times that the others win
		eachNs int64
		want   quota.Outcome
		units  int
	}{
		"often":    {500, ms / 2, quota.Granted, 1},
		"for ever": {math.MaxInt, ms, quota.Unavailable, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRig(t)
			mine := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10_000, minute)))
			other := b.proxy(b.another(0), define(1, quota.LeaseAuto, fixed(10_000, minute)))
			mine.ask(want(1))
			losses, others := 0, false
			b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool {
				if !others && losses < c.max {
					losses++
					b.clock.now += c.eachNs
					others = true
					other.ask(want(1))
					others = false
				}
				return false
			}
			require.Equal(t, c.want, mine.ask(want(1)).Outcome)
			b.store.bend = nil
			require.EqualValues(t, 1+losses+c.units, b.inspect(mine).Used)
		})
	}
}

// The service tells an operator that the store is too slow, where each swap of a key comes too late.
func TestAlwaysLate(t *testing.T) {
	b := newRig(t)
	slow := int64(0)
	b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool {
		slow = 20*ms - slow
		b.clock.now += slow
		return false
	}
	d := define(1, quota.LeaseOff, fixed(10, minute))
	_, err := b.service.Operate(t.Context(), "d", d, [16]byte{1}, &action.Inc{Units: 1, Window: action.AllWindows})
	require.EqualError(t, err, "ask the quota store: each swap came too late to the store: "+
		"it, this service or the way between them is overloaded")
}

// TestLostSecret: services that run while the store loses its state, and those that
// start after it, count together again.
func TestLostSecret(t *testing.T) {
	for name, first := range map[string]bool{"a new service is first": true, "a heartbeat is first": false} {
		t.Run(name, func(t *testing.T) {
			b := newRig(t)
			d := define(1, quota.LeaseOff, fixed(10, minute))
			old := b.proxy(b.service, d)
			require.Equal(t, quota.Granted, old.ask(want(5)).Outcome)
			b.memory = swapstore.NewMemory(func() int64 { return base + b.clock.now })
			b.store.Store = b.memory
			var fresh *proxy
			if first {
				fresh = b.proxy(b.another(0), d)
			}
			b.service.Heartbeat()
			if !first {
				fresh = b.proxy(b.another(0), d)
			}
			require.Equal(t, quota.Granted, fresh.ask(want(6)).Outcome)
			require.Equal(t, quota.Denied, old.ask(want(6)).Outcome)
			require.Equal(t, quota.Granted, old.ask(want(4)).Outcome)
		})
	}
}

// TestAHeartbeatTakesShort: services that start wait SecretWait for the heartbeats of others, however many processes
// there are to note.
func TestAHeartbeatTakesShort(t *testing.T) {
	b := newRig(t)
	for process := range 100 {
		st, err := b.service.Open(Peer{}, func() {})
		require.NoError(t, err)
		require.NoError(t, st.Receive((&quota.Asks{Domain: "d", Process: uint64(process)}).Append(nil)))
	}
	b.clock.advance(0)
	began := b.clock.now
	b.store.late = func() { b.clock.advance(40 * ms) }
	b.service.Heartbeat()
	require.Less(t, b.clock.now-began, int64(SecretWait-HeartbeatEvery))
}

// TestServicesOfAStoreHaveOneKey: with different ones each would count apart, and so
// admit the limit again.
func TestServicesOfAStoreHaveOneKey(t *testing.T) {
	start := func(s swapstore.Store, secret string) error {
		o := Options{Store: s}
		if secret != "" {
			o.Secret = []byte(secret)
		}
		_, err := NewService(t.Context(), o)
		return err
	}
	for _, first := range []string{"", "one"} {
		store := swapstore.NewMemory(swapstore.SteadyClock())
		require.NoError(t, start(store, first))
		require.NoError(t, start(store, first))
		require.ErrorIs(t, start(store, "another"), errOtherSecret)
		require.Equal(t, first != "", start(store, "") != nil)
	}
}

// TestAServiceWithAnotherKeyTakesNoAsks: after the store has lost its state, a service
// with another key may be its first.
func TestAServiceWithAnotherKeyTakesNoAsks(t *testing.T) {
	b := old(t)
	d := define(1, quota.LeaseOff, fixed(10, minute))
	p := b.proxy(b.service, d)
	require.Equal(t, quota.Granted, p.ask(want(5)).Outcome)
	b.memory = swapstore.NewMemory(func() int64 { return base + b.clock.now })
	b.store.Store = b.memory
	_, err := NewService(t.Context(), Options{Store: b.store, Secret: []byte("another")})
	require.NoError(t, err)
	b.service.Heartbeat()
	asks := quota.Asks{Asks: []quota.Ask{{ID: 9, Parts: []quota.Part{want(1)}}}}
	require.ErrorContains(t, p.send(asks), "have another key")
	require.ErrorIs(t, b.service.Healthy(t.Context()), errOtherSecret)
	_, err = b.service.Operate(t.Context(), "d", d, [16]byte{}, &action.Set{Units: 9, Window: action.AllWindows})
	require.ErrorIs(t, err, errOtherSecret, "it would reach no key that is asked for")
	_, err = b.service.Count(t.Context(), []Use{{counterOf(t, fixed(10, minute)), []byte("a"), 1}}, nil)
	require.ErrorIs(t, err, errOtherSecret)

	b.store.Store = swapstore.NewMemory(func() int64 { return base + b.clock.now })
	b.service.Heartbeat()
	require.NoError(t, b.service.Healthy(t.Context()))
	require.Equal(t, quota.Granted, p.ask(want(5)).Outcome)
}
