package decision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"fortio.org/fortio/periodic"
)

// side is a listener of every Envoy of a fleet.
type side struct{ name, filter, policy string }

// The names of sides.
const (
	sideBare   = "bare"
	sideAgain  = "again" // bare once more: noise
	sideProxy  = "proxy"
	sideLeased = "cluster"
	sideAsked  = "ratelimit"
)

// share is a case of a fleet: sides that are loaded by turns with the same keys.
type share struct {
	name, title string
	limits      string // of the rules
	descriptor  string // of the rate limit service, for the same limit
	sides       []string
	draw        func(connection int) func() []byte // keys; nil = one key
	rate        float64                            // requests a second over all Envoys; 0 = as fast as they are answered
	turn        time.Duration
	rounds      int // 0 = as often as the run says
}

const (
	caseHot       = "hot"
	caseWarm      = "warm"
	caseFresh     = "fresh"
	caseSaturated = "fresh-saturated"
	caseClients   = "clients"
)

func shares() []share {
	const sharedTurn = 2 * time.Second
	beside := []string{sideBare, sideAgain, sideAsked, sideLeased}
	return []share{
		{
			name: caseHot, title: "one key, 10,000/s", limits: "20000/1s", descriptor: "user",
			sides: []string{sideBare, sideAgain, sideProxy, sideLeased}, rate: 10_000, turn: sharedTurn,
		},
		{ // where the Envoys' core is not full: then CPU for a request and waits mean something
			name: caseWarm, title: "one key, 4,000/s", limits: "8000/1s", descriptor: "user",
			sides: []string{sideBare, sideAgain, sideProxy, sideLeased}, rate: 4000, turn: sharedTurn,
		},
		{name: caseFresh, title: "fresh keys, 1,000/s", limits: "100/1m", descriptor: "user", sides: beside, draw: freshKeys(), rate: 1000, turn: sharedTurn},
		{name: caseSaturated, title: "fresh keys, saturated", limits: "100/1m", descriptor: "user", sides: beside, draw: freshKeys(), turn: sharedTurn},
		// Long turns: at its start every key has to be asked for.
		{
			name: caseClients, title: "10,000 clients, 2,000/s", limits: "100/1m", descriptor: "client",
			sides: []string{sideBare, sideAsked, sideLeased}, draw: zipfKeys, rate: 2000, turn: 20 * time.Second, rounds: 2,
		},
	}
}

// freshKeys never repeats a key.
func freshKeys() func(int) func() []byte {
	var n atomic.Uint64
	return func(int) func() []byte {
		var key []byte
		return func() []byte {
			key = fmt.Appendf(key[:0], "user-%012d", n.Add(1))
			return key
		}
	}
}

// zipfKeys are those of 10,000 clients, of which few ask for most.
func zipfKeys(connection int) func() []byte {
	z := rand.NewZipf(rand.New(rand.NewPCG(uint64(connection), 1)), 1.1, 1, 9999) //nolint:gosec // no secret
	var key []byte
	return func() []byte {
		key = fmt.Appendf(key[:0], "user-%06d", z.Uint64())
		return key
	}
}

// leasedRule is a policy with one rule of scope cluster. A service that is silent
// shows in what is denied.
func leasedRule(name, list string) string {
	return policyOf(`"quota":{"timeout":"1s"},`, byHeader(name, `"scope":"cluster","on_unavailable":"deny",`+limits(list)))
}

func (s share) listeners() (list []side) {
	for _, name := range s.sides {
		l := side{name: name}
		switch name {
		case sideAsked:
			l.filter = rateLimit
		case sideProxy:
			l.policy = one(limits(s.limits))
		case sideLeased:
			l.policy = leasedRule("per-user", s.limits)
		}
		list = append(list, l)
	}
	return list
}

// turn is what one turn of one side took: CPU for a request.
type turn struct {
	envoyUs, serviceUs, redisUs float64 // of all Envoys, of both services
	rate                        float64 // requests a second that were reached
	denied, asks                float64 // for a request; asks are the quota service's
	latency
}

// settle is how long what a turn leaves to do counts for it.
const settle = 1200 * time.Millisecond

// share measures a case: all sides once a round, each round in the other order.
func (b *bench) share(ctx context.Context, s share) (found sharedCase, err error) {
	sides := s.listeners()
	f, err := b.startFleet(ctx, sides, ", "+strings.Replace(perHeader, "descriptor_key: user", "descriptor_key: "+s.descriptor, 1))
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	found = sharedCase{}
	loads := make([]clients, len(sides))
	defer func() {
		for _, l := range loads {
			l.close()
		}
	}()
	for i := range sides {
		if loads[i], err = f.dial(ctx, sides[i].name); err == nil {
			err = f.warm(loads[i])
		}
		if err != nil {
			return found, err
		}
		for j, c := range loads[i] {
			if s.draw != nil {
				c.draw = s.draw(j)
			}
		}
	}
	rounds := b.rounds
	if s.rounds > 0 {
		rounds = min(rounds, s.rounds)
	}
	for r := range rounds {
		order := make([]int, len(sides))
		for i := range order {
			order[i] = i
		}
		if r%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			t, err := f.turn(ctx, s, loads[i])
			if err != nil {
				return found, fmt.Errorf("%s: %w; Envoy's log:\n%s", sides[i].name, err, f.envoys[0].Log())
			}
			found[sides[i].name] = append(found[sides[i].name], t)
			fmt.Printf("%d/%d %s %-9s %6.0f/s: Envoys %6.2f µs, services %6.2f, Redis %5.2f; p99 %.0f µs, asks %.4f\n",
				r+1, rounds, s.name, sides[i].name, t.rate, t.envoyUs, t.serviceUs, t.redisUs, t.p99, t.asks)
		}
	}
	return found, nil
}

func (f *fleet) turn(ctx context.Context, s share, load clients) (t turn, err error) {
	before, err := f.used()
	if err != nil {
		return t, err
	}
	asksBefore, err := f.quota.asks(ctx)
	if err != nil {
		return t, err
	}
	// As long as it says, also where a busy machine reaches less than the rate.
	got, err := load.run(periodic.RunnerOptions{QPS: cmp.Or(s.rate, -1), Uniform: s.rate > 0, Duration: s.turn}, true)
	if err != nil {
		return t, err
	}
	select {
	case <-ctx.Done():
		return t, context.Cause(ctx)
	case <-time.After(settle):
	}
	asksAfter, err := f.quota.asks(ctx)
	if err != nil {
		return t, err
	}
	after, err := f.used()
	n := float64(max(got.admitted+got.denied, 1))
	us := func(i int) float64 { return float64((after[i] - before[i]).Nanoseconds()) / 1e3 / n }
	return turn{
		envoyUs: us(0), serviceUs: us(1), redisUs: us(2), rate: n / got.took.Seconds(),
		denied: float64(got.denied) / n, asks: (asksAfter - asksBefore) / n, latency: got.latency(),
	}, err
}
