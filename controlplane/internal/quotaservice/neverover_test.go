package quotaservice

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/steptest"
)

// A proxy spends what it was granted at any time that its answer allows. The store
// and the network take any time. Over all proxies no window admits more than its
// limit; units without a lease count as admitted when the store counted them. A proxy also
// claims units that it has admitted by itself. These are admitted whatever the limit is, and
// nothing is granted that does not fit beside them.

var shapes = map[string][]limit.Window{
	"fixed":         {fixed(40, second)},
	"jitter":        {{Algorithm: limit.FixedWindow, Limit: 40, PeriodNs: second, Jitter: 50}},
	"per key":       {{Algorithm: limit.FixedWindowPerKey, Limit: 40, PeriodNs: second}},
	"counter":       {{Algorithm: limit.SlidingWindowCounter, Limit: 40, PeriodNs: second}},
	"log":           {{Algorithm: limit.SlidingWindowLog, Limit: 60, PeriodNs: 10 * second, Units: 60}},
	"log, short":    {{Algorithm: limit.SlidingWindowLog, Limit: 30, PeriodNs: second, Units: 30}},
	"bucket":        {{Algorithm: limit.TokenBucket, Limit: 600, PeriodNs: minute, Burst: 300}},
	"bucket, short": {{Algorithm: limit.TokenBucket, Limit: 30, PeriodNs: second, Burst: 20}},
	"layered":       {fixed(40, second), {Algorithm: limit.TokenBucket, Limit: 600, PeriodNs: minute, Burst: 200}},
}

// overOpened returns how many units more than w, the only window of a key of its own, allows
// were spent, at most, in a window of which it is known when it ends, or outside of theirs.
func overOpened(w limit.Window, spent, ends []int64) (worst int) {
	counts := map[int64]int{}
	for i, end := range ends {
		if counts[end]++; spent[i] >= end || spent[i] < end-w.PeriodNs {
			return len(spent)
		}
		worst = max(worst, counts[end]-int(w.Limit))
	}
	return worst
}

// overClaims returns how many units more than the log w allows were counted, at most, when one of the spent ones was.
func overClaims(w limit.Window, spent, claimed []int64) (worst int) {
	for _, at := range spent {
		counted := 0
		for _, other := range slices.Concat(spent, claimed) {
			if other > at-w.PeriodNs && other <= at {
				counted++
			}
		}
		worst = max(worst, counted-int(w.Limit))
	}
	return worst
}

// overWindow returns how many units more than w allows were spent, at most, in any
// window. Windows of a key's own begin with the first unit after the last window.
func overWindow(w limit.Window, spent []int64) int {
	worst := 0
	open, n := int64(-1<<62), 0
	for from, at := range spent {
		switch w.Algorithm {
		case limit.FixedWindow:
			if start := w.End(at) - w.PeriodNs; start > open {
				open, n = start, 0
			}
			n++
			worst = max(worst, n-int(w.Limit))
			continue
		case limit.FixedWindowPerKey: // which unit opened a window is not seen here: at most two windows meet
			end, _ := slices.BinarySearch(spent, at+w.PeriodNs)
			worst = max(worst, end-from-2*int(w.Limit))
			continue
		default:
		}
		for to := from; to < len(spent); to++ {
			long, units := spent[to]-at, int64(to-from+1)
			worst = max(worst, int(units-allowed(w, long)))
		}
	}
	return worst
}

// allowed is how many units w allows in an interval that both its ends belong to.
func allowed(w limit.Window, long int64) int64 {
	switch {
	case w.Algorithm == limit.TokenBucket:
		return int64(w.Burst) + int64(w.Limit)*long/w.PeriodNs
	case long >= w.PeriodNs:
		return 1 << 40
	case w.Algorithm == limit.SlidingWindowCounter:
		return int64(w.Limit) + int64(w.Limit)*long/w.PeriodNs + 1
	default:
		return int64(w.Limit)
	}
}

// TestNeverOver: also where proxies have two or three definitions, as in a rollout. Those that
// ask for a window, with the same limit or a lower one, spend no more together than it allows.
func TestNeverOver(t *testing.T) {
	change := func(windows []limit.Window, change func(w *limit.Window)) []limit.Window {
		windows = slices.Clone(windows)
		for i := range windows {
			change(&windows[i])
		}
		return windows
	}
	longer := func(windows []limit.Window) []limit.Window {
		return change(windows, func(w *limit.Window) { w.PeriodNs *= 2 })
	}
	for name, windows := range shapes {
		fewer := change(windows, func(w *limit.Window) {
			w.Limit /= 10
			w.Burst /= 10
			w.Units /= 10
		})
		for with, others := range map[string][][]limit.Window{
			"nothing else": nil, "longer": {longer(windows)}, "lower": {fewer}, "longer and lower": {longer(windows), fewer},
			"all else": {append(slices.Clone(shapes["fixed"]), longer(shapes["log"])...), shapes["layered"]},
		} {
			t.Run(name+" and "+with, func(t *testing.T) {
				t.Parallel()
				seeds := uint64(6)
				if others == nil {
					seeds = 48
				}
				for seed := range seeds {
					f := newFleet(t, seed, append([][]limit.Window{windows}, others...)...)
					f.run(300)
					require.Greater(t, len(f.spent[0]), 30, "seed %d", seed)
				}
			})
		}
	}
}

// TestTheStoresClockSteps: as in shared/state, by two services that know the store's clock
// from its last answer. Units without a lease count as admitted when the store counted
// them.
func TestTheStoresClockSteps(t *testing.T) {
	steptest.Judge(t, 300, func(windows []limit.Window, _ uint32, clock *steptest.Clock) steptest.Limiter {
		b := &rig{t: t, clock: &virtual{}, memory: swapstore.NewMemory(func() int64 { return clock.Ns })}
		b.store = &odd{Store: b.memory}
		var proxies [2]*proxy
		for i := range proxies {
			proxies[i] = b.proxy(b.another(int64(i)*3600*second), define(1, quota.LeaseOff, windows...))
		}
		id := func(key int) [16]byte { return [16]byte{1: byte(key)} }
		n := 0
		return steptest.Limiter{
			Hit: func(key int, cost uint32) bool {
				b.clock.now = clock.ElapsedNs
				n++
				part := want(cost)
				part.Key = id(key)
				a := proxies[n/3%2].ask(part)
				require.Contains(t, []quota.Outcome{quota.Granted, quota.Denied}, a.Outcome)
				return a.Outcome == quota.Granted
			},
			OfKey: func(w limit.Window, key int) limit.Window { return quota.Shifted(w, id(key)) },
		}
	})
}

// fleet is proxies on two services, whose clocks are an hour apart, and a store
// that is slow, loses answers, and counts when it counted what.
type fleet struct {
	*rig
	r           *rand.Rand
	seed        uint64
	proxies     []*proxy // of each definition in turn, on each service in turn
	services    [2]*Service
	definitions []quota.Definition
	claims      bool      // proxies claim units: where all windows are logs, and nothing is leased
	spent       [][]int64 // by definition
	claimed     [][]int64 // by definition
	ends        []int64   // of their windows, where there is one definition with one of a key's own
}

func newFleet(t *testing.T, seed uint64, definitions ...[]limit.Window) *fleet {
	f := &fleet{
		rig: newRig(t), seed: seed, r: rand.New(rand.NewPCG(seed, 1)),
		spent: make([][]int64, len(definitions)), claimed: make([][]int64, len(definitions)),
	}
	lease := []uint32{quota.LeaseAuto, quota.LeaseOff, 3}[seed%3]
	isOther := func(w limit.Window) bool { return w.Algorithm != limit.SlidingWindowLog }
	f.claims = lease == quota.LeaseOff && !slices.ContainsFunc(slices.Concat(definitions...), isOther)
	for _, windows := range definitions {
		f.definitions = append(f.definitions, define(1, lease, windows...))
	}
	f.services = [2]*Service{f.service, f.another(3600 * second)}
	f.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		f.clock.advance(f.delay())
		f.memory.Swap(context.Background(), swaps, func(i int, r swapstore.Result) {
			if f.r.IntN(30) == 0 {
				r = swapstore.Result{Status: swapstore.Failed, Err: errors.New("lost")}
			}
			done(i, r)
		})
		f.clock.advance(f.delay())
		return true
	}
	for i := range 4 * len(definitions) {
		f.proxies = append(f.proxies, f.connect(i))
	}
	return f
}

func (f *fleet) connect(i int) *proxy {
	n := len(f.definitions)
	return f.proxy(f.services[i/n%2], f.definitions[i%n])
}

// delay is mostly below the slack, and now and then above.
func (f *fleet) delay() int64 { return f.r.Int64N([]int64{ms / 10, ms, 3 * ms, 8 * ms}[f.r.IntN(4)]) }

// run lets the proxies ask in random turns, and judges what they have spent.
func (f *fleet) run(steps int) {
	for range steps {
		f.clock.advance(f.r.Int64N([]int64{ms, 20 * ms, 300 * ms}[f.r.IntN(3)]))
		i := f.r.IntN(len(f.proxies))
		p := f.proxies[i]
		if f.r.IntN(40) == 0 { // the stream ends: what it holds is lost
			p.Close()
			f.proxies[i] = f.connect(i)
			continue
		}
		cost := 1 + f.r.Uint32N(3)
		sent := base + f.clock.now
		part := quota.Part{Definition: 1, Cost: cost, Waiting: cost + f.r.Uint32N(9), Ahead: f.r.Uint32N(30)}
		if f.claims && f.r.IntN(4) == 0 {
			part.Uncharged = 1 + f.r.Uint32N(3)
		}
		require.NoError(f.t, p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{part}}}}))
		for n := 0; !p.Idle() && n < 100; n++ { // asks may wait for the next window
			for _, a := range p.take() {
				f.use(i%len(f.definitions), p, a, sent)
				f.noteClaim(i%len(f.definitions), part.Uncharged, a, sent)
			}
			f.clock.advance(ms)
		}
	}
	if len(f.ends) > 0 {
		require.LessOrEqual(f.t, overOpened(f.definitions[0].Windows[0], f.spent[0], f.ends), 0, "seed %d", f.seed)
	}
	for _, d := range f.definitions {
		for _, w := range d.Windows {
			spent, claimed := f.together(w, f.spent), f.together(w, f.claimed)
			w = quota.Shifted(w, [16]byte{})
			require.LessOrEqual(f.t, overWindow(w, spent), 0, "seed %d, %+v", f.seed, w)
			if f.claims {
				require.LessOrEqual(f.t, overClaims(w, spent, claimed), 0, "seed %d, %+v", f.seed, w)
			}
		}
	}
}

// together returns, in order, the units of all definitions that have the window with the same limit or a lower one.
func (f *fleet) together(w limit.Window, units [][]int64) (all []int64) {
	countsIn := func(v limit.Window) bool {
		return v == w || v.Same(w) && v.Algorithm != limit.TokenBucket && v.Limit <= w.Limit
	}
	for i := range f.definitions {
		if slices.ContainsFunc(f.definitions[i].Windows, countsIn) {
			all = append(all, units[i]...)
		}
	}
	slices.Sort(all)
	return all
}

// noteClaim notes the units that an ask has claimed, if the store has counted them.
func (f *fleet) noteClaim(definition int, units uint32, a quota.AskResult, sent int64) {
	if a.Outcome == quota.Granted || a.Outcome == quota.Denied {
		f.claimed[definition] = append(f.claimed[definition], slices.Repeat([]int64{sent}, int(units))...)
	}
}

func (f *fleet) use(definition int, p *proxy, a quota.AskResult, sent int64) {
	most := quota.MostWaitNs(f.definitions[definition].Windows)
	for _, g := range a.Grants {
		require.True(f.t, g.WaitNs <= most || g.WaitNs == limit.Never, "a wait of %d", g.WaitNs)
		for _, of := range g.Windows {
			require.LessOrEqual(f.t, of.ResetNs, most)
		}
		spend := func(at int64) {
			f.spent[definition] = append(f.spent[definition], at)
			if w := f.definitions[0].Windows; len(f.definitions)+len(w) == 2 && w[0].Algorithm == limit.FixedWindowPerKey {
				f.ends = append(f.ends, f.counted(p, g).Windows[0].WindowEndNs)
			}
		}
		now, until := base+f.clock.now, sent+g.ValidNs-1
		back, atTheEnd := f.r.Uint32N(1+g.Units/2), f.r.IntN(2) == 0
		for range g.Units - back {
			switch at := now + f.r.Int64N(max(until-now, 0)+1); {
			case f.unleased(p, g):
				spend(f.counted(p, g).AtNs)
			case until < now: // too late: lost
			case atTheEnd:
				spend(until)
			default:
				spend(at)
			}
		}
		if back > 0 { // in two returns
			first := f.r.Uint32N(back + 1)
			p.giveBack(g.Number, first)
			p.giveBack(g.Number, back-first)
		}
	}
}

func (f *fleet) counted(p *proxy, g quota.Grant) balance.HowCounted {
	return p.worker.returnables.list[len(p.worker.returnables.list)-1-int(p.worker.returnables.number-g.Number)].counted
}

// unleased reports whether the units count as spent when they were counted.
func (f *fleet) unleased(p *proxy, g quota.Grant) bool {
	c := f.counted(p, g)
	return f.definitions[0].Lease == quota.LeaseOff || !c.IsLeased()
}
