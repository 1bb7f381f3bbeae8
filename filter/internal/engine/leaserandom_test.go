package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// race is a few workers that lease from one store, and what they have admitted.
type race struct {
	*rand.Rand
	p        *proxy
	workers  []*Engine
	skew     []int64
	admitted map[admittedIn]uint32 // by the instant that the hit counted at
	grace    map[admittedIn]uint32 // units that others held when a key was set or reset
	lost     bool                  // some units could not go back, or were forgotten by an operation
	calm     bool                  // nothing happens by which units are lost
	own      bool                  // by ownRules
}

type admittedIn struct {
	rule   string // empty: all together
	key    string
	window int
	start  int64
}

var raceWindows = []limit.Window{
	{Algorithm: limit.FixedWindow, PeriodNs: 1000 * msNs}, {Algorithm: limit.SlidingWindowCounter, PeriodNs: 7000 * msNs},
	{Algorithm: limit.FixedWindow, PeriodNs: 60_000 * msNs},
}

const raceRules = `{"name":"r","counter":"c","capacity":3,"key":[{"header":"u"}],"cost":{"header":"c","min":0},"lease":16,
		"limits":["200/1s",{"requests":700,"per":"7s","algorithm":"sliding_window_counter"},"1500/1m"]},
	{"name":"s","counter":"c","capacity":3,"key":[{"header":"u"}],"match":{"headers":{"s":"*"}},"lease":16,
		"limits":["150/1s",{"requests":600,"per":"7s","algorithm":"sliding_window_counter"},"1400/1m"]},
	{"name":"last","match":{"headers":{"last":"*"}},"limits":["20/1s"]}`

// ownRules are the same with limits of its own for the key b, in a table of one
// slot, with a rule of the counter that is in the shadow for some keys, and with
// writes that are never got through, which are let through uncounted.
const ownRules = `{"name":"r","counter":"c","capacity":1,"key":[{"header":"u"}],"cost":{"header":"c","min":0},"lease":16,"on_contention":"allow",
		"limits":["200/1s",{"requests":700,"per":"7s","algorithm":"sliding_window_counter"},"1500/1m"],"overrides":[{"key":["b"],"limits":["120/1s","900/1m"]}]},
	{"name":"s","counter":"c","capacity":1,"key":[{"header":"u"}],"match":{"headers":{"s":"*"}},"lease":16,"mode":"shadow",
		"limits":["150/1s",{"requests":600,"per":"7s","algorithm":"sliding_window_counter"},"1400/1m"],"overrides":[{"key":["b"],"limits":["4294967295/1s"]}]},
	{"name":"t","counter":"c","capacity":1,"key":[{"header":"u"}],"match":{"headers":{"s":"*"}},"lease":16,"enforce_percent":40,"overrides":[{"key":["b"],"unlimited":true}],
		"limits":["180/1s",{"requests":600,"per":"7s","algorithm":"sliding_window_counter"},"1500/1m"]},
	{"name":"last","match":{"headers":{"last":"*"}},"limits":["20/1s"]}`

var raceUnlimited = []uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32}

// raceLimits are those of each rule, and of the key b by ownRules.
var raceLimits = map[string][]uint32{
	"": {200, 700, 1500}, "r": {200, 700, 1500}, "s": {150, 600, 1400}, "t": {180, 600, 1500},
	"b": raceUnlimited, "rb": {120, math.MaxUint32, 900}, "sb": raceUnlimited, "tb": raceUnlimited,
}

func (r *race) limit(in admittedIn) uint32 {
	if r.own && in.key == "b" {
		return raceLimits[in.rule+"b"][in.window]
	}
	return raceLimits[in.rule][in.window]
}

func newRace(t *testing.T, seed uint64, own bool) *race {
	r := &race{
		Rand: rand.New(rand.NewPCG(seed, 0)), p: newProxy(),
		calm: seed%2 == 0 && !own, own: own, admitted: map[admittedIn]uint32{}, grace: map[admittedIn]uint32{},
	}
	r.p.now = aligned
	rules := raceRules
	if own {
		rules = ownRules
	}
	for range 3 {
		r.workers = append(r.workers, compileJSON(t, r.p, rules))
		r.skew = append(r.skew, r.Int64N(6)*msNs)
	}
	return r
}

// at runs something in a worker, by that worker's clock.
func (r *race) at(worker int, f func(e *Engine)) {
	now := r.p.now
	r.p.now += r.skew[worker]
	f(r.workers[worker])
	r.p.now = now
}

func (r *race) hit(key string) {
	pairs := []string{"u", key, "c", strconv.Itoa(r.IntN(4))}
	if r.IntN(4) == 0 {
		pairs = append(pairs, "s", "1")
	}
	if r.IntN(8) == 0 {
		pairs = append(pairs, "last", "1")
	}
	r.p.with(pairs...)
	if r.IntN(30) == 0 {
		r.p.steal = r.IntN(3)
	}
	if r.own && r.IntN(200) == 0 {
		r.p.steal = maxRetries + 1
	}
	r.at(r.IntN(len(r.workers)), func(e *Engine) {
		v := e.Decide()
		for i := range v.tries {
			if t := v.tries[i]; v.Allowed && t.counted && t.rule.leases != nil {
				for j, w := range raceWindows {
					r.admitted[admittedIn{"", key, j, w.End(t.entry.Now)}] += t.cost
					r.admitted[admittedIn{t.rule.policy.Name, key, j, w.End(t.entry.Now)}] += t.cost
				}
			}
		}
	})
	r.p.steal = 0
}

// held is how many units of a key the workers hold that are not this one.
func (r *race) held(e *Engine, key string) (units uint32) {
	hash := e.rules[0].leases.table.Hash(&e.tries[0].entry)
	for _, other := range r.workers {
		if l := other.rules[0].leases.of(hash); other != e && l != nil {
			units += l.left
		}
	}
	return units
}

// operate sets or resets a key: what it has used is forgotten, and what other
// workers hold may still be served.
func (r *race) operate(t *testing.T, key string) {
	r.at(r.IntN(len(r.workers)), func(e *Engine) {
		op := Operation{Name: "reset", Rule: "r", Key: []string{key}, N: r.Uint32N(100)}
		if r.IntN(2) == 0 {
			op.Name = "set"
		}
		operate(t, e, op)
		held, at := r.held(e, key), e.tries[0].entry.Now
		for j, w := range raceWindows {
			for _, rule := range []string{"", "r", "s", "t"} {
				in := admittedIn{rule, key, j, w.End(at)}
				r.grace[in] += held
				r.admitted[in] = 0
				if op.Name == "set" {
					r.admitted[in] = op.N
				}
			}
		}
		r.lost = true
	})
}

func (r *race) step(t *testing.T) {
	key := string(rune('a' + r.IntN(2)))
	n := r.IntN(1000)
	if r.calm && (n >= 10 && n < 14 || n >= 15 && n < 17) {
		n = 999
	}
	switch {
	case n < 10:
		r.at(r.IntN(len(r.workers)), func(e *Engine) { e.EndLeases() })
	case n < 12:
		r.operate(t, key)
	case n < 14: // others come and go, and evict
		r.p.with("u", strconv.Itoa(r.IntN(5)))
		r.at(r.IntN(len(r.workers)), func(e *Engine) { e.Decide() })
	case n < 15:
		r.p.now += r.Int64N(90_000) * msNs
	case n < 17:
		r.p.now -= r.Int64N(50) * msNs
	case n < 100:
		r.p.now += r.Int64N(120) * msNs
	default:
		r.p.now += r.Int64N(4) * msNs / 4
		r.hit(key)
	}
}

// What several workers admit with leases stays within every window's limit, and
// once no lease is left, what is counted is what was admitted.
func TestRandomRacesOfLeases(t *testing.T) {
	steps, exact, served, returned, denied := 0, 0, uint64(0), uint64(0), uint64(0)
	for seed := range uint64(450) {
		r := newRace(t, seed, seed >= 300)
		for range 1500 {
			r.step(t)
			steps++
		}
		for in, units := range r.admitted {
			require.LessOrEqual(t, uint64(units), uint64(r.limit(in))+uint64(r.grace[in]), "%v, seed %d", in, seed)
		}
		for i := range r.workers {
			r.at(i, func(e *Engine) { e.StopLeases() })
		}
		for i := range r.workers {
			for j := range r.workers[i].rules {
				m := &r.workers[i].rules[j].metrics
				served, returned, denied = served+m.Leased, returned+m.LeaseReturned, denied+m.Denied
				r.lost = r.lost || m.LeaseLost > 0 || m.NotTakenBack > 0 || m.Evicted > 0
			}
		}
		if !r.lost {
			exact++
		}
		for _, key := range []string{"a", "b"} {
			r.at(0, func(e *Engine) {
				for j, w := range raceWindows {
					answer := operate(t, e, Operation{Name: "get", Rule: "r", Key: []string{key}})
					u := e.tries[0].entry
					have := e.rules[0].leases.table.Usage(&u, e.rules[0].order[j]).Used
					in := admittedIn{"", key, j, w.End(u.Now)}
					want := r.admitted[in]
					require.GreaterOrEqual(t, have+r.grace[in], want, "%s of %s, seed %d: %s", fmt.Sprint(w.PeriodNs), key, seed, answer)
					if !r.lost {
						require.Equal(t, want, have, "%s of %s, seed %d: %s", fmt.Sprint(w.PeriodNs), key, seed, answer)
					}
				}
			})
		}
	}
	require.Greater(t, served, uint64(steps/10))
	require.Positive(t, returned)
	require.Greater(t, denied, uint64(steps/50))
	require.Greater(t, exact, 30)
	buildtest.Figure(t, "%d steps of 3 workers with leases, %d requests served from one, %d denied", steps, served, denied)
}
