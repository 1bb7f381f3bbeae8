package limit

import (
	"flag"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// reference is the plainest limiter of one algorithm: it keeps what was counted and
// when, in unbounded numbers, and shares no code with Window. Its queries take any
// instant from the last write on.
type reference interface {
	define(w Window) // changes the limits
	used(at int64) *big.Int
	reset(at int64) *big.Int
	expiry() *big.Int // 0 where nothing counts
	add(at int64, cost uint32)
	set(at int64, n uint32)
	refund(hit, at int64, cost uint32, opened bool) (complete bool)
}

func number(n int64) *big.Int     { return big.NewInt(n) }
func times(a, b int64) *big.Int   { return new(big.Int).Mul(number(a), number(b)) }
func plus(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) }

func minus(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }

func ceil(a, b *big.Int) *big.Int {
	return new(big.Int).Neg(new(big.Int).Div(new(big.Int).Neg(a), b)) // Div rounds down: b is positive
}

func atMost(a *big.Int, bound int64) int64 {
	if a.Cmp(number(bound)) > 0 {
		return bound
	}
	return a.Int64()
}

// course uses a Window as a record does and compares every result with the
// reference's.
type course struct {
	*testing.T
	random    *rand.Rand
	window    Window
	reference reference
	usage     Usage
	last, now int64
	compared  int
}

// rolled returns a copy of the usage, rolled to at.
func (c *course) rolled(at int64) Usage {
	u := c.usage
	u.Log = slices.Clone(u.Log)
	return rolled(c.window, u, c.last, at)
}

// passes reports whether a hit passes in the reference.
func (c *course) passes(at int64, cost uint32) bool {
	if cost == 0 {
		return true
	}
	if bucket, ok := c.reference.(*bucketReference); ok {
		return bucket.level(at).Cmp(times(int64(cost), c.window.PeriodNs)) >= 0
	}
	return plus(c.reference.used(at), number(int64(cost))).Cmp(number(int64(c.window.Limit))) <= 0
}

// look compares everything that can be read at one instant. It returns the usage,
// and when a hit of that cost passes.
func (c *course) look(at int64, cost uint32) (Usage, int64) {
	c.compared++
	w, u := c.window, c.rolled(at)
	used := atMost(c.reference.used(at), math.MaxUint32)
	left := max(int64(w.Max())-used, 0)
	if w.Limit == 0 {
		left = 0
	}
	if got := w.Count(&u, at); int64(got) != used || int64(w.Remaining(&u, at)) != left {
		c.Fatalf("%+v at %d: %+v: used %d and %d left, in the reference %d and %d", w, at, u, got, w.Remaining(&u, at),
			used, left)
	}
	if got, want := w.Reset(&u, at), atMost(c.reference.reset(at), at+maxWait); got != want {
		c.Fatalf("%+v at %d: %+v: resets at %d, in the reference at %d", w, at, u, got, want)
	}
	pass := w.Check(&u, at, cost)
	switch {
	case w.Limit == 0 || cost > w.Max():
		if pass != Never {
			c.Fatalf("%+v at %d: %+v: a hit of %d passes at %d", w, at, u, cost, pass)
		}
	case pass < at || (pass == at) != c.passes(at, cost):
		c.Fatalf("%+v at %d: %+v: a hit of %d passes at %d, in the reference now: %v", w, at, u, cost, pass,
			c.passes(at, cost))
	case pass > at:
		c.exact(at, pass, cost)
	}
	return u, pass
}

// exact requires that the hit passes at pass and not 1 ns earlier.
func (c *course) exact(at, pass int64, cost uint32) {
	if c.passes(pass-1, cost) {
		c.Fatalf("%+v at %d: %+v: a hit of %d passes at %d, in the reference 1 ns earlier", c.window, at, c.usage, cost, pass)
	}
	if pass >= at+maxWait {
		return // beyond the last instant
	}
	if !c.passes(pass, cost) {
		c.Fatalf("%+v at %d: %+v: a hit of %d passes at %d, in the reference later", c.window, at, c.usage, cost, pass)
	}
	if got := c.window.Check(ref(c.rolled(pass)), pass, cost); got != pass {
		c.Fatalf("%+v at %d: %+v: a hit of %d passes at %d, and then at %d", c.window, at, c.usage, cost, pass, got)
	}
	if got := c.window.Check(ref(c.rolled(pass-1)), pass-1, cost); got != pass {
		c.Fatalf("%+v at %d: %+v: a hit of %d passes at %d, but 1 ns earlier at %d", c.window, at, c.usage, cost, pass, got)
	}
}

// wrote keeps the usage that was written at at and compares its expiry.
func (c *course) wrote(u Usage, at int64) {
	c.usage, c.last = u, at
	if c.window.Limit == 0 && c.window.Algorithm == TokenBucket {
		return
	}
	want, late := atMost(c.reference.expiry(), at+maxWait), int64(0)
	if c.window.Algorithm == TokenBucket {
		late = want & 1 // a time without a stamp is even
	}
	if got := c.window.Expiry(&u, at); got != want && got != want+late {
		c.Fatalf("%+v at %d: %+v expires at %d, in the reference at %d", c.window, at, u, got, want)
	}
}

func (c *course) hit(unchecked bool) {
	at := max(c.now, c.last)
	cost := randomCost(c.random, c.window.Max())
	u, pass := c.look(at, cost)
	if (pass != at && !unchecked) || cost == 0 {
		return
	}
	opened := c.window.Algorithm == FixedWindowPerKey && u.EndNs == 0
	c.reference.add(at, cost)
	c.wrote(added(c.window, u, at, cost), at)
	if unchecked || c.random.IntN(4) > 0 {
		return
	}
	after := c.usage
	if c.random.IntN(2) == 0 { // another hit comes between
		c.now = max(c.now, c.last) + c.random.Int64N(c.window.PeriodNs)/int64(1+c.random.IntN(5))
		between := max(c.now, c.last)
		if u, pass := c.look(between, 1); pass == between {
			c.reference.add(between, 1)
			c.wrote(added(c.window, u, between, 1), between)
		}
	}
	c.now = max(c.now, c.last) + c.random.Int64N(c.window.PeriodNs)/int64(1+c.random.IntN(5))
	back := max(c.now, c.last)
	u, taken := refunded(c.window, c.rolled(back), after, at, back, cost, opened)
	if want := c.reference.refund(at, back, cost, opened); taken != want {
		c.Fatalf("%+v at %d: refund of %d counted at %d: complete %v, in the reference %v", c.window, back, cost, at,
			taken, want)
	}
	c.wrote(u, back)
	c.look(back, 1)
}

var (
	courses    = flag.Int("reference-courses", 3000, "random courses of 45 steps of each algorithm against its reference")
	courseSeed = flag.Uint64("reference-seed", 15, "seed of these courses")
)

// runCourses runs courses of steps from random windows. relimit changes a window's
// limits.
func runCourses(
	t *testing.T, seed uint64, what string,
	start func(r *rand.Rand) Window, relimit func(r *rand.Rand, w *Window), fresh func(w Window) reference,
) {
	t.Helper()
	const steps = 45
	r := rand.New(rand.NewPCG(seed, *courseSeed))
	n, compared := *courses, 0
	if testing.Short() {
		n /= 10
	}
	for range n {
		w := start(r)
		c := &course{T: t, random: r, window: w, reference: fresh(w), now: r.Int64N(60 * 365 * day)}
		unchecked := r.IntN(8) == 0 // counts without a check
		for range steps {
			c.now = step(r, w, c.now)
			if r.IntN(12) == 0 {
				relimit(r, &c.window)
				c.reference.define(c.window)
			}
			if r.IntN(25) == 0 {
				at, n := max(c.now, c.last), randomCost(r, c.window.Max())
				c.reference.set(at, n)
				c.wrote(c.window.Set(at, n), at)
			}
			c.hit(unchecked)
		}
		compared += c.compared
	}
	require.Greater(t, compared, 44*n)
	t.Logf("%d random steps of %s compared with a plain reference", compared, what)
}

func randomPeriod(r *rand.Rand) int64 {
	if r.IntN(3) == 0 {
		return MinPeriodNs + r.Int64N(MaxPeriodNs-MinPeriodNs+1)
	}
	return periods[r.IntN(len(periods))]
}

// ref is what new(u) means from Go 1.26 on, which TinyGo does not read yet.
func ref(u Usage) *Usage { return &u }
