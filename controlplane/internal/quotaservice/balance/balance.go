// Package balance is what one key has counted over all proxies, and what that leaves: the arithmetic by which the
// quota service decides what it grants.
//
// Its invariant: what is granted has been counted before, and counts until nobody may spend it. So nothing that gets
// lost, repeated or delayed on the way to a proxy admits more than the limit. It knows no store and no stream.
//
// The store keeps a State of each key. A View is how a definition that asks sees it: it has the definition's limits,
// and shares what the State has counted.
//
//	State, of the store            View, of a definition
//	minute  42 used          ◀───  minute, limit 100   58 are left
//	hour    80 used          ◀───  hour, limit 1000
//	day     90 used                another definition asks for the day
//	Holders: worker 7 holds 2
//
// A State is rolled to the present, and a View is asked and counts:
//
//	state.Roll(now)
//	view := View{State: &state, Windows: windows}
//	d := view.Offer(lease, &part)
//	if d.Verdict == Passes {
//		counted = view.Take(d.Units, d.SpendByNs) // and view.Return(&counted, n) takes back what comes back
//	}
//
// To read it, begin with example_test.go, which plays a lease and a hold. Then:
//
//	state.go    view_test.go    State: how it moves to a later instant, and when it counts nothing any more
//	window.go   view_test.go    one window of a key, with what it has counted: as a State has it, and as a View has it
//	view.go     view_test.go    View: what is left, how the key stands, and what counts
//	offer.go    offer_test.go   Offer: what a part can be granted, and until when it may be spent
//	hold.go     hold_test.go    Note: what a part is granted to hold
//	holders.go  hold_test.go    Holders: what workers hold of a key
//	debt.go     debt_test.go    what counts whatever is left, and how windows pay it
//
// The invariant is tested on random histories: that of leases in ../neverover_test.go, by a service, its store and
// proxies; that of holds in holdmodel_test.go, by workers whose messages get lost.
package balance

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms

	// saturated is the highest count: a count that has reached it may stand for more.
	saturated = 1<<32 - 1
)

// minus is a - b, at least 0.
func minus(a, b uint32) uint32 { return a - min(a, b) }
