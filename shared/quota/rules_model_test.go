package quota

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// spent is a unit that was spent at an instant, out of a window that ends then.
type spent struct {
	at   int64
	ends []int64 // by window; 0 = the key has none of its own
}

// held is units that proxies hold.
type held struct {
	units  uint32
	charge Charge
	due    int64 // when they go back
}

// fleet is proxies that spend what they were granted at the worst or at random
// times, or return it, or crash.
type fleet struct {
	*State
	r      *rand.Rand
	lease  uint32
	honest bool // stamps what is leased with the lease's end
	spent  []spent
	held   []held
}

func (f *fleet) step(t *testing.T) {
	f.Roll(f.NowNs + f.pause())
	f.goBack()
	cost := 1 + f.r.Uint32N(3)
	part := Part{Cost: cost, Waiting: cost + f.r.Uint32N(20), Ahead: f.r.Uint32N(200)}
	units, terms, ok := f.Grant(f.lease, &part)
	for i := range f.Windows {
		require.LessOrEqual(t, f.Standing(i).ResetNs, MostWaitNs(f.Windows))
	}
	require.LessOrEqual(t, f.WaitNs(cost), MostWaitNs(f.Windows))
	if !ok || units == 0 {
		return
	}
	until := f.NowNs
	if terms.EndNs != 0 {
		until = f.NowNs + SlackNs(f.Windows) + f.ValidNs(terms) - 1
		require.Less(t, until, terms.EndNs)
	}
	if !f.honest {
		terms = Terms{}
	}
	c := f.Add(units, terms)
	f.use(units, c, until)
}

// pause is mostly short against a lease, now and then long against a window.
func (f *fleet) pause() int64 {
	return f.r.Int64N([]int64{ms, 20 * ms, 200 * ms, 3 * second}[f.r.IntN(4)])
}

func (f *fleet) goBack() {
	f.held = slices.DeleteFunc(f.held, func(h held) bool {
		if h.due > f.NowNs {
			return false
		}
		f.Refund(&h.charge, h.units, false)
		return true
	})
}

func (f *fleet) use(units uint32, c Charge, until int64) {
	habit := f.r.IntN(5)
	back := uint32(0)
	for range units {
		at := f.NowNs
		switch {
		case habit == 0: // at once
		case habit == 1:
			at = until
		case habit == 2 && f.r.IntN(2) == 0:
			back++
			continue
		case habit == 3 && f.r.IntN(4) == 0: // crashed
			continue
		default:
			at += f.r.Int64N(until - f.NowNs + 1)
		}
		f.spent = append(f.spent, spent{at, c.Ends})
	}
	if back > 0 {
		f.held = append(f.held, held{back, c, f.NowNs + f.r.Int64N(maxLease)})
	}
}

// over returns the first window in which more was spent than it allows, "" if none.
func (f *fleet) over() string {
	slices.SortStableFunc(f.spent, func(a, b spent) int { return cmp.Compare(a.at, b.at) })
	for i := range f.Windows {
		if f.Windows[i].Unlimited {
			continue
		}
		if why := f.overIn(i); why != "" {
			return fmt.Sprintf("window %d: %s", i, why)
		}
	}
	return ""
}

func (f *fleet) overIn(i int) string {
	w := &f.Windows[i]
	if !stamped(w) && w.Algorithm != limit.SlidingWindowCounter {
		counts := map[int64]uint32{}
		for _, u := range f.spent {
			end := w.End(u.at)
			if w.Algorithm == limit.FixedWindowPerKey {
				end = u.ends[i]
			}
			if counts[end]++; counts[end] > w.Limit || u.at >= end || u.at < end-w.PeriodNs {
				return fmt.Sprintf("%d units until %d", counts[end], end)
			}
		}
		return ""
	}
	for from := range f.spent {
		for to := from; to < len(f.spent); to++ {
			long, n := f.spent[to].at-f.spent[from].at, int64(to-from+1)
			if overIn(w, n, long) {
				return fmt.Sprintf("%d units in %d ns", n, long)
			}
		}
	}
	return ""
}

// overIn reports whether n units are more than the window allows in an interval
// that begins and ends with one of them.
func overIn(w *limit.Window, n, long int64) bool {
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		return long < w.PeriodNs && n > int64(w.Limit)
	case limit.SlidingWindowCounter: // at most limit·(1 + x/W) + 1
		return long <= w.PeriodNs && (n-1-int64(w.Limit))*w.PeriodNs > int64(w.Limit)*long
	default: // at most burst and what the bucket gains
		return (n-int64(w.Burst))*w.PeriodNs > int64(w.Limit)*long
	}
}

func (f *fleet) run(t *testing.T, steps int) string {
	for range steps {
		f.step(t)
	}
	return f.over()
}

var shapes = map[string][]limit.Window{
	"fixed":             {fixed(60, 20*second)},
	"fixed, jittered":   {Shifted(limit.Window{Algorithm: limit.FixedWindow, Limit: 60, PeriodNs: 20 * second, Jitter: 50}, KeyOf(12345678901, 0))},
	"per key":           {perKey(60, 11*second)},
	"per key, short":    {perKey(40, 2*second)},
	"counter":           {counter(60, 12*second)},
	"log":               {logOf(60, 20*second)},
	"log, short":        {logOf(30, second)},
	"bucket":            {bucket(600, minute, 400)},
	"bucket, short":     {bucket(30, second, 20)},
	"layered":           {fixed(50, 5*second), bucket(8, second, 120), logOf(300, 40*second)},
	"layered, per key":  {perKey(30, 2*second), counter(100, 20*second)},
	"layered, one free": {limit.Window{Algorithm: limit.FixedWindow, PeriodNs: second, Unlimited: true}, logOf(60, 20*second)},
}

// TestNeverOver: whatever proxies do with their leases, no window admits more than
// its limit.
func TestNeverOver(t *testing.T) {
	for name, windows := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				f := fleet{
					State: at(base, 0, slices.Clone(windows)...), r: rand.New(rand.NewPCG(seed, 1)),
					lease: []uint32{LeaseAuto, LeaseAuto, LeaseOff, 5}[seed%4], honest: true,
				}
				require.Empty(t, f.run(t, 150), "seed %d", seed)
			}
		})
	}
}

// TestStampMatters: the same with units counted when they are granted, not when
// their lease ends, goes over.
func TestStampMatters(t *testing.T) {
	for _, name := range []string{"log", "layered"} {
		over := 0
		for seed := range uint64(600) {
			f := fleet{State: at(base, 0, shapes[name]...), r: rand.New(rand.NewPCG(seed, 1)), lease: LeaseAuto}
			if f.run(t, 150) != "" {
				over++
			}
		}
		require.Positive(t, over, name)
	}
}

// TestLeasedBucket: all that is leased from a bucket while the first lease lasts is
// spent at its end, in one moment. With the end as the stamp that is at most the
// burst. Without, a bucket of 100 that gains 1,000 a second and has leases of ten
// seconds admits a hundred times as much.
func TestLeasedBucket(t *testing.T) {
	for _, c := range []struct {
		window  limit.Window
		length  int64
		without uint32
	}{
		{bucket(1000, second, 100), 10 * second, 100 + 10000},
		{bucket(1000, second, 10000), 100 * ms, 10000 + 100}, // as Terms has it
	} {
		require.LessOrEqual(t, leasedUntil(c.window, c.length, true), c.window.Burst)
		require.Equal(t, c.without, leasedUntil(c.window, c.length, false))
	}
}

func leasedUntil(w limit.Window, length int64, stamp bool) (total uint32) {
	s, terms := at(base, 0, w), Terms{}
	if stamp {
		terms.EndNs = base + length
	}
	for s.NowNs <= base+length {
		left := s.Left(terms)
		s.Add(left, terms)
		total += left
		s.Roll(s.NowNs + 10*ms)
	}
	return total
}
