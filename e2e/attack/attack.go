// Package attack lists the requests of an attack: a flood of invented keys, honest
// clients that suffer from it, and cheaters that hide in it.
//
// Its invariant: the list depends only on the plan, so that limiters of any kind can
// be put under the same attack. It sends nothing and must never import a package that
// does.
package attack

import (
	"cmp"
	"slices"
	"strconv"
)

// Plan describes an attack.
type Plan struct {
	Flood    int // invented keys, with one request each
	Limit    int // requests that each key may send in a window
	Windows  int // length of the attack in windows, 0 = less than one
	Honest   int // clients that send half their limit in each window, evenly spread
	Cheaters int // clients that send bursts of a little more than their limit
	Bursts   int // bursts of each cheater, evenly spread over the attack
}

// burst is the number of requests in a cheater's burst.
func (p Plan) burst() int { return p.Limit + 5 }

// List is the attack as one number for each request: the index of the invented key,
// or −1 minus the index of the client.
type List struct {
	plan   Plan
	sender []int32
}

// NewList returns the requests of a plan.
func NewList(p Plan) *List {
	type visit struct {
		at     float64 // 0 = beginning, 1 = end of the attack
		sender int32
		times  int
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
			l.sender = append(l.sender, key)
			key++
		}
		for range v.times {
			l.sender = append(l.sender, v.sender)
		}
	}
	for ; int(key) < p.Flood; key++ {
		l.sender = append(l.sender, key)
	}
	return l
}

// Len returns the number of requests.
func (l *List) Len() int { return len(l.sender) }

// Key returns the key of request i.
func (l *List) Key(i int) string {
	switch sender := int(l.sender[i]); {
	case sender >= 0:
		return "flood-" + strconv.Itoa(sender)
	case -1-sender < l.plan.Honest:
		return "honest-" + strconv.Itoa(-1-sender)
	default:
		return "cheater-" + strconv.Itoa(-1-sender-l.plan.Honest)
	}
}

// Outcome counts the requests of an attack by what happened to them.
type Outcome struct {
	Sent         int // all requests
	HonestSent   int // requests of honest clients
	HonestDenied int // requests of honest clients that were denied, each of them wrongly
	FloodDenied  int // requests of invented keys that were denied
	CheaterMax   int // largest number of requests of one cheater that were admitted
	OverLimit    int // clients with more admitted requests than one window's limit
}

// Judge returns the outcome. passed reports whether request i was admitted; Judge
// calls it for each request in order.
func (l *List) Judge(passed func(i int) bool) (o Outcome) {
	o.Sent = len(l.sender)
	admitted := make([]int, l.plan.Honest+l.plan.Cheaters)
	for i, sender := range l.sender {
		pass := passed(i)
		if sender >= 0 {
			if !pass {
				o.FloodDenied++
			}
			continue
		}
		client := int(-1 - sender)
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
			o.CheaterMax = max(o.CheaterMax, n)
		}
	}
	return o
}

// FalselyDenied returns the percentage of honest requests that were denied.
func (o Outcome) FalselyDenied() float64 {
	return 100 * float64(o.HonestDenied) / float64(max(o.HonestSent, 1))
}
