package limit

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// bucketReference knows what was taken and when, in units of a token's
// nanosecond, and nothing of a level: since any taking i the bucket can have
// gained what it gains in that time and has lost what was taken since, and it
// never held more than burst, so it holds the least of
//
//	burst·W  and, for each i,  burst·W + requests·(at − tᵢ) − Σ_{j≥i} taken_j
type bucketReference struct {
	window Window
	last   int64
	taken  []taking
	wrote  *big.Int // what it held at the last write, nil when full
}

type taking struct {
	at    int64
	units *big.Int
}

func (m *bucketReference) full() *big.Int {
	return times(int64(m.window.Burst), m.window.PeriodNs)
}

func (m *bucketReference) level(at int64) *big.Int {
	least, sum := m.full(), new(big.Int)
	for i := len(m.taken) - 1; i >= 0; i-- {
		sum.Add(sum, m.taken[i].units)
		holds := minus(plus(m.full(), times(int64(m.window.Limit), at-m.taken[i].at)), sum)
		if holds.Cmp(least) < 0 {
			least = holds
		}
	}
	return least
}

// hold forgets the past: the bucket holds that much at the last write.
func (m *bucketReference) hold(level *big.Int) {
	m.taken, m.wrote = nil, nil
	if lacks := minus(m.full(), level); lacks.Sign() > 0 {
		m.taken, m.wrote = []taking{{m.last, lacks}}, level
	}
}

// define keeps the tokens there were at the last write, cut to the new burst;
// a full bucket stays full.
func (m *bucketReference) define(w Window) {
	if m.window = w; m.wrote != nil {
		level := m.wrote
		m.hold(level)
		m.wrote = level
	}
}

func (m *bucketReference) used(at int64) *big.Int {
	return ceil(minus(m.full(), m.level(at)), number(m.window.PeriodNs))
}

func (m *bucketReference) passes(at int64, cost uint32) bool {
	return m.level(at).Cmp(times(int64(cost), m.window.PeriodNs)) >= 0
}

func (m *bucketReference) reset(at int64) *big.Int {
	lacks := minus(m.full(), m.level(at))
	switch {
	case lacks.Sign() == 0:
		return number(at)
	case m.window.Limit == 0:
		return number(at + maxWait)
	}
	return plus(number(at), ceil(lacks, number(int64(m.window.Limit))))
}

func (m *bucketReference) expiry() *big.Int {
	if m.level(m.last).Cmp(m.full()) == 0 {
		return number(0)
	}
	return m.reset(m.last)
}

func (m *bucketReference) add(at int64, cost uint32) {
	m.last = at
	m.taken = append(m.taken, taking{at, times(int64(cost), m.window.PeriodNs)})
	if m.wrote = m.level(at); m.wrote.Cmp(m.full()) == 0 {
		m.wrote = nil
	}
}

func (m *bucketReference) set(at int64, n uint32) {
	m.taken = nil
	m.add(at, n)
}

// refund gives back what of the charge has not been gained again since.
func (m *bucketReference) refund(hit, at int64, cost uint32) bool {
	level := m.level(at)
	m.last = at
	if back := minus(times(int64(cost), m.window.PeriodNs), times(int64(m.window.Limit), at-hit)); back.Sign() > 0 {
		level.Add(level, back)
	}
	m.hold(level)
	return true
}

func randomBucket(r *rand.Rand) Window {
	w := Window{Algorithm: TokenBucket, PeriodNs: randomPeriod(r)}
	relimitBucket(r, &w)
	return w
}

func relimitBucket(r *rand.Rand, w *Window) {
	if w.Burst == 0 || r.IntN(2) == 0 {
		w.Burst = max(limits[r.IntN(len(limits))], 1)
		if r.IntN(2) == 0 {
			w.Burst = uint32(1 + r.IntN(300))
		}
	}
	relimitAny(r, w)
}

func TestTheBucketAgainstTheReference(t *testing.T) {
	n := runCourses(t, 9000, 45, 33, randomBucket, relimitBucket, func(w Window) reference { return &bucketReference{window: w} })
	requireCompared(t, 400_000, n, "token_bucket")
}

// A worker of a configuration that does not know the bucket's size hands out
// nothing: it neither fills the bucket nor gives back to it.
func TestABucketOfUnknownSizeGainsNothing(t *testing.T) {
	w := Window{Algorithm: TokenBucket, Limit: 5, Burst: 10, PeriodNs: second}
	unknown := Window{Algorithm: TokenBucket, PeriodNs: second}
	u := added(w, Usage{}, day, 7)
	require.Equal(t, u, rolled(unknown, u, day, day+ms))
	require.Equal(t, u, added(unknown, u, day+ms, 2))
	got, taken := refunded(unknown, u, u, day, day+ms, 2, false)
	require.Equal(t, u, got)
	require.True(t, taken)
	require.Equal(t, Usage{}, added(unknown, Usage{}, day, 3))
}
