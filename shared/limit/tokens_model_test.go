package limit

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// bucketReference keeps what was taken and when, in 1/W of a token, and no level.
// The bucket never held more than burst. Just before taking i it held at most that,
// since then it has gained limit·(at − tᵢ), and it has lost what was taken. So it
// holds the minimum of
//
//	burst·W  and, for each i,  burst·W + limit·(at − tᵢ) − Σ_{j≥i} taken_j
type bucketReference struct {
	window Window
	last   int64
	taken  []taking
	wrote  *big.Int // level at the last write, nil = full
}

type taking struct {
	at    int64
	units *big.Int
}

func (m *bucketReference) full() *big.Int {
	return times(int64(m.window.Burst), m.window.PeriodNs)
}

func (m *bucketReference) level(at int64) *big.Int {
	level, sum := m.full(), new(big.Int)
	for i := len(m.taken) - 1; i >= 0; i-- {
		sum.Add(sum, m.taken[i].units)
		holds := minus(plus(m.full(), times(int64(m.window.Limit), at-m.taken[i].at)), sum)
		if holds.Cmp(level) < 0 {
			level = holds
		}
	}
	return level
}

// hold forgets the past: the bucket holds level at the last write.
func (m *bucketReference) hold(level *big.Int) {
	m.taken, m.wrote = nil, nil
	if lacks := minus(m.full(), level); lacks.Sign() > 0 {
		m.taken, m.wrote = []taking{{m.last, lacks}}, level
	}
}

// define keeps the level of the last write, cut to the new burst. A full bucket
// stays full.
func (m *bucketReference) define(w Window) {
	m.window = w
	if m.wrote != nil {
		level := m.wrote
		m.hold(level)
		m.wrote = level
	}
}

func (m *bucketReference) used(at int64) *big.Int {
	return ceil(minus(m.full(), m.level(at)), number(m.window.PeriodNs))
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
	m.wrote = m.level(at)
	if m.wrote.Cmp(m.full()) == 0 {
		m.wrote = nil
	}
}

func (m *bucketReference) set(at int64, n uint32) {
	m.taken = nil
	m.add(at, n)
}

// refund gives back the cost, less what the bucket has gained since.
func (m *bucketReference) refund(hit, at int64, cost uint32, _ bool) bool {
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
	runCourses(t, 33, "token_bucket", randomBucket, relimitBucket,
		func(w Window) reference { return &bucketReference{window: w} })
}

// A configuration that does not know the bucket's size neither refills the bucket
// nor refunds to it.
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

func TestStamps(t *testing.T) {
	for _, hash := range []uint64{0, 1, 2046, 2047, 1<<64 - 1} {
		stamp := NewStamp(hash)
		require.EqualValues(t, 1, stamp&1)
		require.Greater(t, stamp, uint16(1), "1 ns is a time without a stamp of its own")
		require.LessOrEqual(t, stamp, uint16(stampMask))
		w := Window{Algorithm: TokenBucket, Limit: 1, Burst: 9, PeriodNs: second, Stamp: stamp}
		for _, ns := range []int64{1, 4095, 4096, 4097, 1_700_000_000*second + 1} {
			got := w.stamped(ns)
			require.EqualValues(t, stamp, stampOf(got))
			require.GreaterOrEqual(t, got, ns)
			require.Less(t, got, ns+stampMask+1)
			require.Equal(t, got, w.stamped(got), "stamping again changes nothing")
			require.False(t, w.stale(got))
			shifted := shifted(w, Usage{EndNs: got}, -12345)
			require.False(t, w.stale(shifted.EndNs), "a shift keeps the stamp")
			require.GreaterOrEqual(t, shifted.EndNs, got-12345)
		}
	}
	plain := Window{Algorithm: TokenBucket, Limit: 1, Burst: 9, PeriodNs: second}
	for _, ns := range []int64{2, 3, 77 * second} {
		require.Zero(t, stampOf(plain.stamped(ns)))
		require.False(t, plain.stale(ns), "without overrides no time is stale")
	}
}

// A bucket that is never full is so however often its time is stamped anew: lapses are charged to
// one of unknown size again and again, and configurations with another stamp write it.
func TestStampsOfTheLatestInstant(t *testing.T) {
	ns := maxInstant
	for i := range int64(100) {
		ns = withStamp(ns, []int64{foreignStamp, 0, 7, stampMask, 3}[i%5])
		require.GreaterOrEqual(t, ns, maxInstant)
	}
	require.LessOrEqual(t, ns, maxInstant+stampMask)
	bucket := Window{Algorithm: TokenBucket, Limit: 1, Burst: 9, PeriodNs: second}
	require.GreaterOrEqual(t, shifted(bucket, Usage{EndNs: ns}, second).EndNs, maxInstant,
		"nor where a floor is ahead of the clock")
}

func TestFill(t *testing.T) {
	w := Window{Algorithm: TokenBucket, Limit: 3, Burst: 10, PeriodNs: second}
	require.Equal(t, 10*second/3+1, w.Fill())
	unlimited, never := w, w
	unlimited.Unlimited, never.Limit = true, 0
	require.Zero(t, unlimited.Fill())
	require.Zero(t, never.Fill())
	require.Zero(t, (&Window{Algorithm: FixedWindow, Limit: 3, PeriodNs: second}).Fill())
}
