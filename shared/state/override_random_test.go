package state

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// bound is an upper bound of the tokens in a key's bucket, over the configurations
// since its last hit: it gains at the fastest of their rates, and once it is full
// it stays full, whatever its size becomes.
type bound struct {
	tokens float64 // at the last hit
	full   bool
	rate   float64
	at     int64
}

// update returns the tokens that the bucket may hold at now, under the limits w.
func (m *bound) update(w limit.Window, now int64) float64 {
	m.rate = max(m.rate, float64(w.Limit)/float64(w.PeriodNs))
	now += 5000 // a stamp moves a time by up to 4095 ns
	tokens := m.tokens + float64(now-m.at)*m.rate
	if w.Limit == 0 || tokens >= float64(w.Burst) { // a floor ends under limits of 0
		m.full = true
	}
	if m.full {
		return float64(w.Burst)
	}
	return tokens
}

// Random histories of a page of one or two slots and three keys. The limits of the
// keys and of the rule change at random, also to 0. No key gets more than its bound
// has, and none waits longer than twice the fill time of the slowest bucket in the
// history.
func TestRandomOverridesRefundNothingAndLockNobodyOut(t *testing.T) {
	for seed := range uint64(5000) {
		randomOverrides(t, seed)
	}
}

func randomOverrides(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	some := func() limit.Window {
		bursts, rates := []uint32{0, 1, 4, 10, 40}, []uint32{0, 1, 2, 10}
		return tokenBucket(bursts[rnd.IntN(5)], rates[rnd.IntN(4)], second)
	}
	store, now := newMemory(), 1000*second
	const keys = 3
	capacity := uint32(1 + rnd.IntN(2))
	var rule limit.Window
	var overrides []Override
	var windows []limit.Window
	var table *Table
	known := map[string]*bound{}
	limits := func(k string) limit.Window {
		for _, o := range overrides {
			if o.Keys == k {
				return o.Windows[0]
			}
		}
		return rule
	}
	slowest := int64(0)
	configure := func(version int64) {
		if rule.PeriodNs == 0 || rnd.IntN(3) == 0 {
			rule = some()
		}
		overrides = nil
		for k := range keys {
			if rnd.IntN(2) == 0 {
				overrides = append(overrides, Override{fmt.Sprint(k), []limit.Window{some()}})
			}
		}
		windows = Overridden([]limit.Window{rule}, overrides)
		table = configured(store, "o", version, definition("x", capacity, rule))
		for k := range keys {
			own := limits(fmt.Sprint(k))
			slowest = max(slowest, own.Fill())
		}
		slowest = max(slowest, rule.Fill())
	}
	configure(1)
	key := func(k string) Key {
		return Key{Bytes: []byte(k), Windows: []limit.Window{limits(k)}, Rule: windows}
	}
	for step := range int64(60) {
		switch rnd.IntN(12) {
		case 0:
			for k, m := range known {
				m.update(limits(k), now)
			}
			configure(step + 2)
			for k, m := range known {
				m.update(limits(k), now)
			}
		case 1, 2:
			now += rnd.Int64N(3 * second)
		case 3:
			var e Entry
			_, status := table.Clean(&e, windows, now)
			require.Equal(t, OK, status)
		default:
			k := fmt.Sprint(rnd.IntN(keys))
			m := known[k]
			if m == nil {
				m = &bound{full: true, at: now}
				known[k] = m
			}
			w := limits(k)
			holds := m.update(w, now)
			var e Entry
			require.Equal(t, OK, table.Read(&e, key(k), now))
			cost := uint32(1 + rnd.IntN(4))
			if table.Check(&e, cost) != e.Now {
				continue
			}
			require.Equal(t, OK, table.Commit(&e, cost, true))
			require.GreaterOrEqual(t, holds+1e-3, float64(cost), "seed %d step %d key %s %+v", seed, step, k, w)
			m.tokens, m.full, m.rate, m.at = holds-float64(cost), false, 0, now
		}
	}
	now += 2 * slowest
	for k := range keys {
		name := fmt.Sprint(k)
		if w := limits(name); w.Limit > 0 && w.Burst > 0 {
			var e Entry
			require.Equal(t, OK, table.Read(&e, key(name), now))
			require.Equal(t, e.Now, table.Check(&e, 1), "seed %d: key %s %+v of rule %+v is locked out", seed, name, w, windows[0])
		}
	}
}
