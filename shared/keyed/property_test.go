package keyed

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// plain is a limiter that applies package limit to an unbounded map of keys.
type plain struct {
	windows     []limit.Window // in the builder's order
	countDenied bool
	block       time.Duration // 0 = none
	prolongs    bool
	keys        map[string]*plainKey
	floor       int64 // when a key was last reset: new keys start no earlier
}

type plainKey struct {
	usage   []limit.Usage
	last    int64
	blocked int64 // until when, 0 or past = not
}

// at returns the key rolled to now, or to its last write if that is later.
func (p *plain) at(key string, now int64) (k plainKey) {
	k = plainKey{make([]limit.Usage, len(p.windows)), max(now, p.floor), 0}
	if have := p.keys[key]; have != nil {
		k.last = max(now, have.last)
		if have.blocked > k.last {
			k.blocked = have.blocked
		}
		for i, w := range p.windows {
			k.usage[i] = have.usage[i]
			w.Roll(&k.usage[i], have.last, k.last)
			k.usage[i].Log = slices.Clone(k.usage[i].Log)
		}
	}
	return k
}

func (p *plain) check(k plainKey, cost uint32) int64 {
	pass := max(k.last, k.blocked)
	for i, w := range p.windows {
		at := w.Check(&k.usage[i], k.last, cost)
		if at == limit.Never {
			return limit.Never
		}
		pass = max(pass, at)
	}
	return pass
}

func (p *plain) change(key string, k plainKey, f func(limit.Window, *limit.Usage)) {
	for i, w := range p.windows {
		f(w, &k.usage[i])
	}
	p.keys[key] = &k
}

func (p *plain) hit(key string, now int64, cost uint32) (allowed bool, retry time.Duration) {
	k := p.at(key, now)
	pass := p.check(k, cost)
	allowed = pass != limit.Never && pass <= k.last
	if !allowed && cost > 0 && p.block > 0 && (k.blocked == 0 || p.prolongs) {
		k.blocked = k.last + int64(p.block)
		p.keys[key] = &k
		pass = p.check(k, cost)
	}
	if cost > 0 && (allowed || p.countDenied) {
		p.change(key, k, func(w limit.Window, u *limit.Usage) { w.Add(u, k.last, cost) })
		if !allowed {
			pass = p.check(p.at(key, now), cost)
		}
	}
	switch {
	case allowed:
		return true, 0
	case pass == limit.Never:
		return false, Never
	}
	return false, time.Duration(pass - now)
}

// clean forgets the keys of which nothing counts any more.
func (p *plain) clean(now int64) (freed int) {
	for key, k := range p.keys {
		live := k.blocked > now
		for i, w := range p.windows {
			live = live || w.Expiry(&k.usage[i], k.last) > now
		}
		if !live {
			p.floor = max(p.floor, now, k.last)
			delete(p.keys, key)
			freed++
		}
	}
	return freed
}

// same requires that both have the same usage of the key.
func (p *plain) same(t *testing.T, l *Limiter, key string, now int64, at string) {
	t.Helper()
	k := p.at(key, now)
	lowest, tightest := uint32(1<<32-1), Usage{}
	ends := time.Time{}
	for i, u := range l.Detail(key, nil) {
		w := p.windows[i]
		want := Usage{
			Period: time.Duration(w.LengthNs(k.last)), Limit: w.Max(), Used: w.Count(&k.usage[i], k.last),
			Remaining: w.Remaining(&k.usage[i], k.last), ResetAt: time.Unix(0, w.Reset(&k.usage[i], k.last)),
		}
		require.Equal(t, want, u, "%s: window %d, key %s", at, i, key)
		if i == 0 || u.Remaining < lowest {
			lowest = u.Remaining
			tightest = u
			ends = u.ResetAt
			if onGrid := w.Algorithm == limit.FixedWindow || w.OnGrid(); !onGrid && k.usage[i].IsZero() {
				ends = time.Time{} // nothing is open
			}
		}
	}
	peeked := l.Peek(key)
	until := time.Time{}
	if k.blocked != 0 {
		until = time.Unix(0, k.blocked)
	}
	require.Equal(t, until, peeked.BlockedUntil, at)
	require.Equal(t, []uint32{lowest, tightest.Limit}, []uint32{peeked.Remaining, peeked.Limit}, at)
	require.Equal(t, tightest.ResetAt, peeked.ResetAt, at)
	require.Equal(t, tightest.Used, l.Get(key), at)
	require.Equal(t, ends, l.ExpiresAt(key), at)
}

// randomWindows adds one to three windows to b.
func randomWindows(r *rand.Rand, b *Builder) {
	for i := range 1 + r.IntN(3) {
		per := time.Duration(1+r.IntN(50))*time.Millisecond + time.Duration(i) // all differ
		units := uint32(r.IntN(12))
		switch r.IntN(7) {
		case 0:
			b.Window(per, units)
		case 1:
			b.Window(per, units, Offset(time.Duration(r.Int64N(int64(per)))))
		case 2:
			b.WindowPerKey(per, units)
		case 3:
			b.SlidingLog(per, units)
		case 4:
			b.SlidingCounter(per, units)
		case 5:
			if r.IntN(2) == 0 {
				b.WindowPerKey(per, units, Elastic())
			} else {
				b.TokenBucket(per, units, Burst(1+uint32(r.IntN(12))))
			}
		case 6:
			b.Months([]int{1, 2, 3, 4, 6, 12}[i], units, Offset(time.Duration(r.IntN(27))*24*time.Hour),
				UTCOffset(time.Duration(r.IntN(14))*time.Hour))
		}
	}
}

var (
	propertyLimiters = flag.Int("property-limiters", 150,
		"random limiters, 400 steps each, to compare with the plain arithmetic")
	propertySeed = flag.Uint64("property-seed", 1, "seed of these limiters")
)

// propertyRun compares one limiter with the plain arithmetic, step by step.
type propertyRun struct {
	*testing.T
	random          *rand.Rand
	limiter         *Limiter
	plain           *plain
	clock           *frozen
	allowed, denied int
	blocked         int // denied though every window had room
}

func TestLimiterIsTheArithmetic(t *testing.T) {
	const steps = 400
	seed, limiters := *propertySeed, *propertyLimiters
	if testing.Short() {
		limiters /= 10
	}
	random := rand.New(rand.NewPCG(seed, 0))
	allowed, denied := 0, 0
	blocked := 0
	for n := range limiters {
		r := newPropertyRun(t, random)
		for i := range steps {
			r.step(fmt.Sprintf("seed %d, limiter %d, step %d, %+v", seed, n, i, r.plain.windows))
		}
		allowed += r.allowed
		denied += r.denied
		blocked += r.blocked
	}
	t.Logf("%d random steps of the library compared with the arithmetic: %d hits allowed, %d denied, %d by a block alone",
		limiters*steps, allowed, denied, blocked)
	require.Greater(t, blocked, 5*limiters)
	require.Greater(t, allowed, 33*limiters)
	require.Greater(t, denied, 33*limiters)
}

func newPropertyRun(t *testing.T, random *rand.Rand) *propertyRun {
	b := New().Capacity(4) // all keys have room, in one page
	randomWindows(random, b)
	p := &plain{keys: map[string]*plainKey{}}
	buckets := false
	for _, w := range b.windows {
		p.windows = append(p.windows, w.Window)
		buckets = buckets || w.Algorithm == limit.TokenBucket
	}
	if !buckets && random.IntN(2) == 0 {
		b.CountDenied()
		p.countDenied = true
	}
	if random.IntN(2) == 0 {
		p.block = time.Duration(1+random.IntN(60)) * time.Millisecond
		b.Block(p.block)
		p.prolongs = random.IntN(2) == 0
		if p.prolongs {
			b.Prolong()
		}
	}
	l, clock := build(t, b)
	return &propertyRun{T: t, random: random, limiter: l, plain: p, clock: clock}
}

// step lets time pass, or sets the clock back a little, and does one thing with a key.
func (r *propertyRun) step(at string) {
	r.clock.Duration += time.Duration(r.random.Int64N(int64(8 * time.Millisecond)))
	if r.random.IntN(20) == 0 {
		r.clock.Duration -= time.Duration(r.random.Int64N(int64(20 * time.Millisecond)))
	}
	now := int64(r.clock.Duration)
	key := fmt.Sprint(r.random.IntN(4))
	units := uint32(r.random.IntN(4))
	switch r.random.IntN(12) {
	case 0:
		k := r.plain.at(key, now)
		r.plain.change(key, k, func(w limit.Window, u *limit.Usage) { w.Add(u, k.last, units) })
		_, err := r.limiter.Inc(key, units)
		require.NoError(r, err)
	case 1:
		k := r.plain.at(key, now)
		r.plain.change(key, k, func(w limit.Window, u *limit.Usage) { *u = w.Set(k.last, units) })
		_, err := r.limiter.Set(key, units)
		require.NoError(r, err)
	case 2:
		r.reset(key, now, at)
	case 3:
		freed := r.plain.clean(now)
		require.EqualValues(r, len(r.plain.keys), r.limiter.Stats().Keys, at)
		require.EqualValues(r, freed, r.limiter.Clean(), at)
	default:
		r.hit(key, now, units, at)
	}
	r.plain.same(r.T, r.limiter, key, now, at)
}

func (r *propertyRun) reset(key string, now int64, at string) {
	have := r.plain.keys[key]
	if have != nil {
		r.plain.floor = max(r.plain.floor, now, have.last)
		delete(r.plain.keys, key)
	}
	had, err := r.limiter.Reset(key)
	require.NoError(r, err)
	require.Equal(r, have != nil, had, at)
}

func (r *propertyRun) hit(key string, now int64, units uint32, at string) {
	before := r.limiter.PeekN(key, units)
	open := r.plain.at(key, now)
	open.blocked = 0
	room := r.plain.check(open, units) == open.last
	ok, retry := r.plain.hit(key, now, units)
	got := r.limiter.HitN(key, units)
	require.Equal(r, ok, before.Allowed, at)
	if !r.plain.countDenied && r.plain.block == 0 {
		require.Equal(r, retry, before.RetryAfter, at)
	}
	require.Equal(r, ok, got.Allowed, at)
	require.Equal(r, retry, got.RetryAfter, at)
	if ok {
		r.allowed++
	} else {
		r.denied++
		if room {
			r.blocked++
		}
	}
}

// together runs f in n goroutines at once.
func together(n int, f func(worker int)) {
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() { f(i) })
	}
	done.Wait()
}

func TestConcurrentHitsAreExact(t *testing.T) {
	const units, workers = 100, 8
	for name, b := range map[string]*Builder{
		"jitter": New().Window(time.Hour, units, Jitter(20)),
		"layered": New().Window(time.Hour, units+7).TokenBucket(time.Hour, units+3, Burst(units)).
			WindowPerKey(time.Hour, units+1).
			SlidingLog(time.Hour, units+2).SlidingCounter(time.Hour, units+4),
		"counted denials": New().Window(time.Hour, units).CountDenied(),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := build(t, b)
			many := keys(50)
			passed := make([]atomic.Int64, len(many))
			together(workers, func(worker int) {
				for i := range 3 * units / workers * len(many) {
					n := (i*7 + worker) % len(many)
					if l.Hit(many[n]).Allowed {
						passed[n].Add(1)
					}
				}
			})
			tried := uint64(3*units/workers*len(many)) * workers
			for i := range passed {
				require.EqualValues(t, units, passed[i].Load(), many[i])
			}
			got := l.Stats()
			require.EqualValues(t, len(many)*units, got.Allowed)
			require.Equal(t, tried-got.Allowed, got.Denied)
			require.EqualValues(t, len(many), got.Keys)
		})
	}
}

func TestConcurrentOperations(t *testing.T) {
	l, err := New().Window(time.Hour, 1<<31).SlidingLog(time.Minute, 20).Capacity(5000).Build()
	require.NoError(t, err)
	together(8, func(worker int) {
		var windows []Usage
		for i := range 2000 {
			key := fmt.Sprint(i % 700)
			switch (i + worker) % 9 {
			case 0:
				l.Peek(key)
			case 1:
				l.Get(key)
			case 2:
				windows = l.Detail(key, windows[:0])
			case 3:
				_, _ = l.SetWindow(key, "1", 3)
			case 4:
				l.ExpiresAt(key)
			case 5:
				_, _ = l.Reset(key)
			case 6:
				if i%100 == 0 {
					l.Clean()
				}
			case 7:
				if i%100 == 0 {
					l.Stats()
				}
			default:
				l.Hit(key)
			}
		}
	})
	together(8, func(int) {
		for range 1000 {
			_, _ = l.IncWindow("counted", "0", 2)
		}
	})
	require.EqualValues(t, 16_000, l.Detail("counted", nil)[0].Used)
}
