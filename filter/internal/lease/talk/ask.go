package talk

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// ask asks the service for the units that some requests need, or, if it isLook, how keys stand. If no
// request waits for it, it is for requests to come, or it only reports what is held.
//
// It has a part for each key of which units are needed, for all requests that have joined it. For example, two requests
// join a refill of key k:
//
//	what joins       needs         the part then
//	                               Cost  Waiting  Ahead  Spent
//	the refill       60 ahead         0        0     60      5
//	first request    2 of key k       2        2     60      5
//	second request   3 of key k       2      2+3     60      5
//
// So of a part's fields:
//
//	Cost             is of the first request: the service grants at least this much, or denies
//	Waiting          is of all requests
//	Ahead, Spent     are of what has made the ask. The Spent of another is dropped, and a later ask says it: see
//	                 lease/uncharged.go
//	Shadow, NoBlock  are of the rule, so each request has the same
type ask struct {
	id      uint32
	want    string // which units it asks for: see appendWant
	parts   []lease.Part
	waiters []*Waiter // that wait for it
	sentNs  int64
	stream  uint32 // on which it was sent
}

// appendWant appends which units the parts want. If a rule counts denied requests, it also says the
// cost: of a denied ask the service counts all units, and a request that costs less might pass.
func appendWant(b []byte, parts []lease.Part) []byte {
	for i := range parts {
		p := &parts[i]
		b = binary.LittleEndian.AppendUint32(b, p.Wire.Definition)
		b = append(b, p.Wire.Key[:]...)
		switch {
		case p.Wire.Inspect: // a look at these keys is another ask than one for their units
			b = append(b, "look"...)
		case p.CountsDenied():
			b = binary.LittleEndian.AppendUint32(b, p.Wire.Cost)
		}
	}
	return b
}

// isLook reports whether the ask is for looks: it asks for no units.
func (a *ask) isLook() bool { return a.parts[0].Wire.Inspect }

// add adds what another request needs to the ask.
func (a *ask) add(parts []lease.Part) {
	for i := range a.parts {
		p, cost := &a.parts[i].Wire, parts[i].Wire.Cost
		if len(a.waiters) == 0 { // the request is the first one, of an ask that was made for requests to come
			p.Cost = cost
		}
		p.Waiting = limit.AddSaturating(p.Waiting, cost)
	}
}

// putBefore has the requests of an earlier ask for the same units wait for this one, before its own.
func (a *ask) putBefore(earlier *ask) {
	for _, req := range earlier.waiters {
		req.asks = append(without(req.asks, earlier), a)
	}
	for i := range a.parts {
		p, before := &a.parts[i].Wire, &earlier.parts[i].Wire
		p.Cost = before.Cost
		p.Waiting = limit.AddSaturating(p.Waiting, before.Waiting)
	}
	a.waiters = append(earlier.waiters, a.waiters...)
}

// leave removes a request from those that wait for the ask. What it has added stays asked for.
func (a *ask) leave(req *Waiter) {
	a.waiters = without(a.waiters, req)
}

// without removes one of a list.
func without[T comparable](list []T, one T) []T {
	return slices.DeleteFunc(list, func(other T) bool { return other == one })
}

// The rest is about the reports of its accounts: see package account.

// isReport reports whether the ask is only for a report.
func (a *ask) isReport() bool { return len(a.waiters) == 0 && a.parts[0].Account() != nil }

// awaitsReport reports whether the ask must wait, because a report of one of its accounts is under way.
func (a *ask) awaitsReport(b *account.Book) bool {
	for i := range a.parts {
		if acc := a.parts[i].Account(); acc != nil && b.AwaitsReport(acc) {
			return true
		}
	}
	return false
}

// writeReports writes what its accounts hold now.
func (a *ask) writeReports(b *account.Book, now int64) {
	for i := range a.parts {
		a.parts[i].WriteReport(b, now)
	}
}

// giveUpReports says that the service does not take the reports now.
func (a *ask) giveUpReports() { a.eachReport((*account.Account).GiveUpReport) }

// reportAgain has its accounts reported with the next message: the reports may be lost, or never leave with the ask.
func (a *ask) reportAgain() { a.eachReport((*account.Account).ReportAgain) }

func (a *ask) eachReport(do func(acc *account.Account, number uint64)) {
	for i := range a.parts {
		if acc := a.parts[i].Account(); acc != nil {
			do(acc, a.parts[i].Wire.Number)
		}
	}
}
