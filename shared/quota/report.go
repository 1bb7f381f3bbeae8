package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Report is what one worker of a proxy holds of a key, and what it has charged in all. It says
// how things stand, not what changed: a report that is lost, late or repeated harms nothing,
// and any stream may carry it.
type Report struct {
	Worker  uint64 // who reports it
	Held    uint32 // units that it holds, without what the part asks for
	Charged uint64 // units that answers have charged in all since report Since
	Known   uint64 // of these, the units that the worker knows to be counted
	Since   uint64 // this one where no earlier one may be under way
	Number  uint64 // of the report: it grows with each of the worker's; 0 = none
}

// Account is a worker's side of one key's row. The zero value holds nothing.
type Account struct {
	Held  uint32 // by requests
	Given uint32 // granted to requests that have not taken them yet

	charged, known uint64
	row            uint32 // what the row holds, by the last answer
	doubt          bool   // the row may hold something else

	since, number uint64 // of its first and its last report
	reported      Report // the last one
}

// Report returns the report to send with that number. From then on, no answer to an
// earlier report grants anything. earlier are units that earlier parts of the same ask ask
// for: they are reported as held, because they may be granted.
func (a *Account) Report(worker, number uint64, earlier uint32) Report {
	if a.since == 0 {
		a.since = number
	}
	a.number, a.doubt = number, true
	a.reported = Report{
		Worker: worker, Held: limit.AddSaturating(a.Held+a.Given, earlier), Charged: a.charged, Known: a.known, Since: a.since, Number: number,
	}
	return a.reported
}

// Noted takes the answer to a report, which grants so many units. Where a later one has
// left since, or the answer has come before, it grants nothing, and ok is false.
func (a *Account) Noted(number uint64, units uint32) (ok bool) {
	if number != a.number || !a.doubt {
		return false
	}
	a.known, a.row, a.doubt = a.reported.Charged, limit.AddSaturating(a.reported.Held, units), false
	if a.Idle() {
		*a = Account{}
	}
	return true
}

// Settle ends what a request holds, and charges what it has cost.
func (a *Account) Settle(units, cost uint32) {
	a.Held -= min(units, a.Held)
	a.charged += uint64(cost)
}

// Due reports whether the row is to be reported anew.
func (a *Account) Due() bool {
	return a.charged != a.known || a.doubt || a.row != a.Held+a.Given
}

// Idle reports whether the row holds nothing and is known to say so: nothing need be kept.
func (a *Account) Idle() bool { return !a.Due() && a.row == 0 }
