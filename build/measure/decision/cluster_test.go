//go:build linux

package decision

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// proxies is how many Envoys share limits.
const proxies = 3

// share is a case of three Envoys: sides that are loaded by turns with the same keys.
type share struct {
	name, title string
	limits      string // of the rules
	limiter     string // descriptor of the rate limit service, for the same limit
	sides       []string
	draw        func(connection int) func() []byte // keys; nil = one key
	rate        float64                            // requests a second over all Envoys; -1 = as fast as they are answered
	turn        time.Duration
	rounds      int // at most; 0 = as often as the run says
}

// The names of sides: what stands before the router.
const (
	sideBare   = "bare"
	sideAgain  = "again" // bare once more: noise
	sideProxy  = "proxy"
	sideLeased = "cluster"
	sideAsked  = "ratelimit"
)

const (
	caseFresh     = "fresh"
	caseSaturated = "fresh-saturated"
	caseClients   = "clients"
)

func shares() []share {
	const turn = 2 * time.Second
	alone, beside := []string{sideBare, sideAgain, sideProxy, sideLeased},
		[]string{sideBare, sideAgain, sideAsked, sideLeased}
	return []share{
		{name: "hot", title: "one key, 10,000/s", limits: "20000/1s", limiter: "user", sides: alone, rate: 10_000,
			turn: turn},
		// Where the Envoys' core is not full: then CPU for a request and waits mean something.
		{name: "warm", title: "one key, 4,000/s", limits: "8000/1s", limiter: "user", sides: alone, rate: 4000, turn: turn},
		{name: caseFresh, title: "fresh keys, 1,000/s", limits: "100/1m", limiter: "user", sides: beside, draw: freshKeys,
			rate: 1000, turn: turn},
		{name: caseSaturated, title: "fresh keys, saturated", limits: "100/1m", limiter: "user", sides: beside,
			draw: freshKeys,
			rate: -1, turn: turn},
		// Long turns: at its start every key has to be asked for.
		{
			name: caseClients, title: "10,000 clients, 2,000/s", limits: "100/1m", limiter: "client",
			sides: []string{sideBare, sideAsked, sideLeased}, draw: zipfKeys, rate: 2000, turn: 20 * time.Second, rounds: 2,
		},
	}
}

var fresh atomic.Uint64

// freshKeys never repeats a key.
func freshKeys(int) func() []byte {
	return func() []byte { return fmt.Appendf(nil, "user-%012d", fresh.Add(1)) }
}

// zipfKeys are those of 10,000 clients, of which few ask for most.
func zipfKeys(connection int) func() []byte {
	z := rand.NewZipf(rand.New(rand.NewPCG(uint64(connection), 1)), 1.1, 1, 9999)
	return func() []byte { return fmt.Appendf(nil, "user-%06d", z.Uint64()) }
}

// leasedRule is a policy with one rule of scope cluster. A service that is silent shows in
// what is denied.
func leasedRule(list string) string {
	return policyOf(`"quota":{"timeout":"1s"},`,
		byHeader("per-user", `"scope":"cluster","on_unavailable":"deny",`+limits(list)))
}

// share measures a case: all sides once a round, each round in the other order. Of each side
// it returns the turns; those of one place were taken in one round.
func (b *bench) share(t testing.TB, s share, rounds int) map[string][]turn {
	site := site{envoys: proxies, workers: 1, limiter: s.limiter, quota: true}
	for _, name := range s.sides {
		site.sides = append(site.sides, side{name, map[string]func() string{
			sideBare: func() string { return "" }, sideAgain: func() string { return "" },
			sideAsked:  func() string { return rateLimit },
			sideProxy:  func() string { return wasmFilter(t, name, b.wasm, one(limits(s.limits))) },
			sideLeased: func() string { return wasmFilter(t, name, b.wasm, leasedRule(s.limits)) },
		}[name]()})
	}
	f := b.run(t, site)
	loads := map[string]*clients{}
	for _, name := range s.sides {
		load := f.dial(t, name, "", 1)
		for began := time.Now(); time.Since(began) < b.warmUp; {
			load.run(t, full(30*len(load.list)))
		}
		for i, c := range load.list {
			if s.draw != nil {
				c.draw = s.draw(i)
			}
		}
		loads[name] = load
	}
	found, order := map[string][]turn{}, slices.Clone(s.sides)
	for r := range min(rounds, cmp.Or(s.rounds, rounds)) {
		for _, name := range order {
			got := f.turn(t, loads[name], paced(s.rate, s.turn))
			found[name] = append(found[name], got)
			n := float64(got.admitted + got.denied)
			fmt.Printf("%d %s %-9s %6.0f/s, denied %.3f: Envoys %6.2f µs, services %6.2f, Redis %5.2f; "+
				"p50 %.0f µs, p99 %.0f, asks %.4f\n",
				r+1, s.name, name, n/got.took.Seconds(), float64(got.denied)/n, got.envoy, got.service, got.redis, got.p50(),
				got.p99(), got.asks)
		}
		slices.Reverse(order)
	}
	return found
}

// bars is the table of what limits over all Envoys are held to, from what was found of each
// case.
func bars(found map[string]map[string][]turn) string {
	// above is how much a figure of a side is above that of another one: the median of the rounds.
	above := func(name, side, other string, figure func(turn) float64) float64 {
		var list []float64
		for i, t := range found[name][side] {
			list = append(list, figure(t)-figure(found[name][other][i]))
		}
		return quantile(list, 0.5)
	}
	added := func(name, side string) float64 { return above(name, side, sideBare, turn.total) }
	beside := func(name string) float64 { return added(name, sideLeased) / added(name, sideAsked) }
	const anew = "every request a fresh key, CPU added over all processes, of envoyproxy/ratelimit's, "
	var list []target
	for _, s := range shares() {
		if s.draw == nil {
			list = append(list, target{s.title + ": CPU added, of a `scope: proxy` rule's", 1.15, "%.2f",
				added(s.name, sideLeased) / added(s.name, sideProxy)},
				target{"the same: requests that ask", 2, "%.2f %%",
					100 * median(found[s.name][sideLeased], func(t turn) float64 { return t.asks })},
				target{"the same: p99 above it", 0.1, "%.3f ms",
					above(s.name, sideLeased, sideProxy, func(t turn) float64 { return t.p99() }) / 1e3})
		}
	}
	return targetTable(append(list,
		target{anew + "at low load", 0.75, "%.2f", beside(caseFresh)},
		target{anew + "saturated", 0.6, "%.2f", beside(caseSaturated)},
		target{"10,000 clients (Zipf 1.1), 100/min each, 2,000/s: the same", 0.5, "%.2f", beside(caseClients)}))
}
