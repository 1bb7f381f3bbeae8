package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Units of a definition with a limit.Concurrency are held: a request takes them when it is
// admitted, and when its answer is known they end and its cost is charged. Each worker has the Sums
// of what it holds of a key, and reports them. The store keeps a balance.Holder of each worker's
// last report.
//
// A report says how things stand, so it may be lost, late or repeated. Here a request holds 2
// units, then costs 5, and another one asks for 1. charged and known are sums over all reports. On the left is the call
// of the worker, and what it leaves:
//
//	call           leaves                  on the way                            store's Holder
//	NewReport      doubt                   #7 held 0 charged 0, asks for 2  ->   #7 held 2 charged 0
//	NoteGrant, 2   noted 2             <-  granted 2
//	Hold 2         held 2
//	Settle 2, 5    held 0, charged 5
//	NewReport      doubt                   #8 held 0 charged 5: lost             #7 held 2 charged 0
//	NewReport      doubt                   #9 held 0 charged 5              ->   #9 held 0 charged 5: counts 5 - 0
//	               doubt                   its answer: lost
//	               doubt                   #9 once more                     ->   ErrStale: nothing changes
//	NewReport      doubt                   #10 held 0 charged 5, asks for 1 ->   #10 held 1 charged 5: counts 5 - 5
//	NoteGrant, 1   noted 1, known 5    <-  granted 1
//	Hold 1         held 1
//	Settle 1, 0    held 0                  it has cost nothing
//	NewReport      doubt                   #11 held 0 charged 5             ->   #11 held 0 charged 5
//	NoteGrant, 0   the zero value      <-  noted
//	Settle 0, 1    charged 1               a request that held nothing has cost 1
//	NewReport      doubt                   #12 since 12, charged 1          ->   #12 since 12, charged 1: counts 1 - 0
//	                                       one ask, of two parts for the key:
//	NewReport      doubt                   #13 held 0 charged 1, asks for 2 ->   #13 held 2 charged 1: counts 1 - 1
//	NewReport, 2   doubt                   #14 held 2 charged 1, asks for 1 ->   #14 held 3 charged 1
//	NoteGrant, 1   noted 3, known 1    <-  granted 2, and 1: the answer to #14 alone is noted
//	AddGiven 2, 1  given 3
//
// #13 and #14 belong to one ask. When #14 is made, #13 has not been answered. Its 2 units may be granted, and #14 is
// the newest report then, which must say so. So #14 reports them as held.
//
// Should an answer to #9 come after #10 has left, it grants nothing. A store that has lost the Holder counts
// charged - known of the next report. All before #12 are since 7, so of #12 the store does not take off the 5 that its
// Holder has. ExampleSums plays the worker, and ExampleView_Note of quotaservice/balance both up to #12.

// Sums are a worker's side of what it holds of one key. Their zero value holds nothing. The owner is
// filter/internal/lease/account.
type Sums struct {
	held  uint32 // by requests
	given uint32 // granted, and no request holds them yet

	charged uint64 // the costs of all settled holds
	known   uint64 // the part of charged that the store has counted, by its last answer
	noted   uint32 // what the store has as held, by its last answer
	doubt   bool   // the last report has no answer yet: the store may have it or not

	reported Report // the last report; Number 0 = none
}

// NewReport returns the report to send with that number. From then on, NoteGrant refuses answers to earlier reports.
// askedBefore are units that earlier parts of the same ask ask for, 2 in #14: they are reported as held, because the
// owner may give what these are granted. See Account.BeginReport of filter/internal/lease/account.
func (s *Sums) NewReport(worker, number uint64, askedBefore uint32) Report {
	since := s.reported.Since
	if since == 0 {
		since = number
	}
	s.doubt = true
	s.reported = Report{
		Worker:  worker,
		Held:    limit.AddSaturating(s.held+s.given, askedBefore),
		Charged: s.charged,
		Known:   s.known,
		Since:   since,
		Number:  number,
	}
	return s.reported
}

// NewestReport is the number of the newest report, 0 if there is none.
func (s *Sums) NewestReport() uint64 { return s.reported.Number }

// NoteGrant notes the answer to the newest report, which grants so many units. ok is false if it refuses the answer: a
// later report has left since, or the answer has come before.
//
// If nothing is held then, and all that was charged is known, the Sums are zero afterwards: they begin anew with the
// next report, see Report.Since.
//
// The store has the units as held from then on. The Sums do not until the owner calls AddGiven or Hold. What the owner
// does not add, or drops again, goes back with the next report, because Changed is true meanwhile.
func (s *Sums) NoteGrant(number uint64, units uint32) (ok bool) {
	if number != s.reported.Number || !s.doubt {
		return false
	}
	s.known = s.reported.Charged
	s.noted = limit.AddSaturating(s.reported.Held, units)
	s.doubt = false
	if s.Idle() {
		*s = Sums{}
	}
	return true
}

// The verbs by which units move. None takes more off a sum than it has: less than 0 would be reported as four billion.
// Adding does not saturate, because what is granted or held is within a limit. What a part asks for need not be, so
// NewReport saturates.

// AddGiven adds units that are granted, and that no request holds yet.
func (s *Sums) AddGiven(units uint32) { s.given += units }

// DropGiven drops units that are granted, and that no request will hold.
func (s *Sums) DropGiven(units uint32) { s.given -= min(units, s.given) }

// HoldGiven has a request hold units that are granted.
func (s *Sums) HoldGiven(units uint32) {
	s.DropGiven(units)
	s.Hold(units)
}

// UnholdGiven undoes HoldGiven.
func (s *Sums) UnholdGiven(units uint32) {
	s.Unhold(units)
	s.AddGiven(units)
}

// Hold has a request hold units that are not given.
func (s *Sums) Hold(units uint32) { s.held += units }

// Unhold undoes Hold.
func (s *Sums) Unhold(units uint32) { s.held -= min(units, s.held) }

// Settle ends what a request holds, and charges what it has cost.
func (s *Sums) Settle(units, cost uint32) {
	s.Unhold(units)
	s.charged += uint64(cost)
}

// Held is what requests hold.
func (s *Sums) Held() uint32 { return s.held }

// Given is what is granted, and no request holds yet.
func (s *Sums) Given() uint32 { return s.given }

// Changed reports whether there is something to report: something has changed since the last
// answer, or the last report has none.
func (s *Sums) Changed() bool {
	return s.charged != s.known || s.doubt || s.noted != s.held+s.given
}

// Idle reports whether the worker holds nothing and the store knows it: nothing need be kept.
func (s *Sums) Idle() bool { return !s.Changed() && s.noted == 0 }
