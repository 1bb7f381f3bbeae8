// Package attack is a flood of invented keys, and the clients that suffer from
// it or hide in it, as one list of requests.
//
// Its invariant: the list depends on the plan alone, so that limiters of any
// kind can be put under the very same attack. It sends nothing and must never
// import what does.
package attack

import (
	"cmp"
	"slices"
	"strconv"
)

// Plan says who sends how much while the flood runs.
type Plan struct {
	Flood    int // keys that are asked for once each
	Limit    int // of every key in a window
	Windows  int // that the attack lasts, 0 = a part of one
	Honest   int // clients that send half their limit in a window, evenly
	Cheaters int // clients that come in bursts of a little more than their limit
	Bursts   int // of each cheater, evenly over the attack
}

// burst is how much a cheater sends at a time.
func (p Plan) burst() int { return p.Limit + 5 }

// List is the attack, a number for each request: of the invented key, or below
// zero of the client.
type List struct {
	plan Plan
	who  []int32
}

// NewList lays a plan out.
func NewList(p Plan) *List {
	type visit struct {
		at    float64 // 0 = beginning, 1 = end of the attack
		who   int32
		times int
	}
	var visits []visit
	spread := func(first, clients, rounds, times int) {
		for c := range clients {
			for r := range rounds {
				at := (float64(r) + (float64(c)+0.5)/float64(clients)) / float64(rounds)
				visits = append(visits, visit{at, int32(-1 - first - c), times})
			}
		}
	}
	spread(0, p.Honest, p.Limit/2*max(p.Windows, 1), 1)
	spread(p.Honest, p.Cheaters, p.Bursts, p.burst())
	slices.SortStableFunc(visits, func(a, b visit) int { return cmp.Compare(a.at, b.at) })

	l := &List{plan: p}
	key := int32(0)
	for _, v := range visits {
		for int(key) < int(v.at*float64(p.Flood)) {
			l.who = append(l.who, key)
			key++
		}
		for range v.times {
			l.who = append(l.who, v.who)
		}
	}
	for ; int(key) < p.Flood; key++ {
		l.who = append(l.who, key)
	}
	return l
}

// Len is how many requests there are.
func (l *List) Len() int { return len(l.who) }

// Key is the key of request i.
func (l *List) Key(i int) string {
	switch who := int(l.who[i]); {
	case who >= 0:
		return "flood-" + strconv.Itoa(who)
	case -1-who < l.plan.Honest:
		return "honest-" + strconv.Itoa(-1-who)
	default:
		return "cheater-" + strconv.Itoa(-1-who-l.plan.Honest)
	}
}

// Outcome is what became of an attack.
type Outcome struct {
	Sent                     int // requests
	HonestSent, HonestDenied int // denials of honest clients are false
	FloodDenied              int
	CheaterMost              int // that one cheater was let through
	OverLimit                int // clients that were let through more than one window's limit
}

// Judge tells the outcome, given which requests were let through.
func (l *List) Judge(passed func(i int) bool) (o Outcome) {
	o.Sent = len(l.who)
	admitted := make([]int, l.plan.Honest+l.plan.Cheaters)
	for i, who := range l.who {
		pass := passed(i)
		if who >= 0 {
			if !pass {
				o.FloodDenied++
			}
			continue
		}
		client := int(-1 - who)
		if pass {
			admitted[client]++
		}
		if client < l.plan.Honest {
			o.HonestSent++
			if !pass {
				o.HonestDenied++
			}
		}
	}
	for client, n := range admitted {
		if n > l.plan.Limit {
			o.OverLimit++
		}
		if client >= l.plan.Honest {
			o.CheaterMost = max(o.CheaterMost, n)
		}
	}
	return o
}

// FalselyDenied is the share of honest requests that were denied, in percent.
func (o Outcome) FalselyDenied() float64 {
	return 100 * float64(o.HonestDenied) / float64(max(o.HonestSent, 1))
}
