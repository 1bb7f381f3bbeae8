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
		r := &bucketRun{T: t, random: rand.New(rand.NewPCG(seed, 4)), store: newMemory()}
		r.capacity = 1 + r.random.Uint32N(2)
		r.play(seed)
	}
}

type bucketRun struct {
	*testing.T
	random   *rand.Rand
	store    *memory
	capacity uint32
	table    *Table
	rule     []limit.Window
	limits   [3]limit.Window // of the keys
	known    [3]bound
	slowest  int64
}

func (r *bucketRun) some() limit.Window {
	bursts, rates := []uint32{0, 1, 4, 10, 40}, []uint32{0, 1, 2, 10}
	return tokenBucket(bursts[r.random.IntN(5)], rates[r.random.IntN(4)], second)
}

func (r *bucketRun) configure(version int64) {
	if r.rule == nil || r.random.IntN(3) == 0 {
		r.rule = []limit.Window{r.some()}
	}
	r.rule[0].Stamp, r.rule[0].FillNs = 0, 0
	var overrides []Override
	for k := range r.limits {
		if r.limits[k] = r.rule[0]; r.random.IntN(2) == 0 {
			r.limits[k] = r.some()
			overrides = append(overrides, Override{fmt.Sprint(k), []limit.Window{r.limits[k]}})
		}
		r.slowest = max(r.slowest, r.limits[k].Fill(), r.rule[0].Fill())
	}
	r.table = configured(r.store, "o", version, definition("x", r.capacity, r.rule[0]))
	r.rule = Overridden(r.rule, overrides)
}

// pass reads the key and reports whether a hit passes.
func (r *bucketRun) passes(e *Entry, k int, now int64, cost uint32) bool {
	key := Key{Bytes: []byte{byte(k)}, Windows: r.limits[k : k+1], Rule: r.rule}
	require.Equal(r, OK, r.table.Read(e, key, now))
	return r.table.Check(e, cost) == e.Now
}

func (r *bucketRun) update(now int64) {
	for k := range r.known {
		r.known[k].update(r.limits[k], now)
	}
}

func (r *bucketRun) play(seed uint64) {
	now := 1000 * second
	for k := range r.known {
		r.known[k] = bound{full: true, at: now}
	}
	r.configure(1)
	var e Entry
	for step := range int64(60) {
		switch r.random.IntN(12) {
		case 0:
			r.update(now)
			r.configure(step + 2)
			r.update(now)
		case 1, 2:
			now += r.random.Int64N(3 * second)
		case 3:
			_, status := r.table.Clean(&e, r.rule, now)
			require.Equal(r, OK, status)
		default:
			k, cost := r.random.IntN(len(r.known)), 1+r.random.Uint32N(4)
			m := &r.known[k]
			holds := m.update(r.limits[k], now)
			if !r.passes(&e, k, now, cost) {
				continue
			}
			require.Equal(r, OK, r.table.Commit(&e, cost, true))
			require.GreaterOrEqual(r, holds+1e-3, float64(cost), "seed %d step %d key %d %+v", seed, step, k, r.limits[k])
			*m = bound{tokens: holds - float64(cost), at: now}
		}
	}
	now += 2 * r.slowest
	for k, w := range r.limits {
		never := w.Limit == 0 || w.Burst == 0
		require.True(r, never || r.passes(&e, k, now, 1), "seed %d: key %d %+v of rule %+v is locked out", seed, k, w, r.rule)
	}
}
