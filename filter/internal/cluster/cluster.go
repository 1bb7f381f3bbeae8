// Package cluster has what a Subject of package decide carries for a rule of scope cluster, from one call of its source
// to the next: above all what the quota service has granted the request. Only package lease writes it, but for
// Begin and BeginCheck. Package decide must not reach package lease: it only has each Subject carry it, and reads what
// the last check has found.
//
// Its invariant: Begin and BeginCheck empty all but its memory, so no request gets what another was granted.
package cluster

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Carried is what a subject carries. Who sets what, where a request has to wait:
//
//	Source.Check  finds too few units: the outcome is Pending
//	StartWaiting  Asked = Asking. The talk asks the service
//	StopWaiting   Asked = TimedOut or Rejected, if that gives nothing
//	HandOut       Allotment = what the request gets of a grant, or that the service denies
//	Source.Check  goes by the Allotment if that decides, or by units that are there by now. Else the outcome is Pending
//	              again if the subject is still Asking, Contended if it was Rejected, and that of on_unavailable if it
//	              TimedOut
//
// Which functions of package lease write each field, beside Begin and BeginCheck:
//
//	Asked        StartWaiting, StopWaiting
//	AskedFor     BeginAsk
//	Allotment    HandOut, Take, Refund, dropAllotment
//	Account      HoldSource.askPart, takeShare
//	From         Check, Operate
//	MonotonicNs  begin, readLease
//	Standings    Check, Operate, Look
//	Lease        readLease, takeLease
//	Taken        takeLease
type Carried struct {
	ofRequest
	ofCheck

	// Memory:
	LeaseMemory *state.LeaseEntry // what Lease points to; nil until one is read
	ShareMemory []limit.Window    // for CountedKey.Windows, where OwnShare decides
}

// ofRequest begins anew with each request.
type ofRequest struct {
	Asked     Asked             // so far, and what came of it
	AskedFor  *quota.Definition // of the key's limits, by which the ask's part is found; nil if no units were asked for
	Allotment Allotment
	// Account, of a rule that holds, is the key's account of package lease: it has what the service grants, and
	// Source.Take counts the units there. It is nil if they are in none. The request's hold.Hold takes it over.
	Account hold.Account
}

// ofCheck begins anew with each check. It is what that has found.
type ofCheck struct {
	From        From  // where the units are: Take, Refund and Usage follow it
	MonotonicNs int64 // when it looked, by the monotonic clock: when Lease was read, if it was
	// Standings is how the windows stand over all proxies, as the quota service has said last: to this request, or as the
	// Lease has it. They are in the order of records. If the subject has a View and is not counted here, each window has
	// one.
	Standings []leased.Standing
	Lease     *state.LeaseEntry // LeaseMemory once it is read, and what Take has changed in it since; else nil
	Taken     leased.Taken      // of the Lease, by Source.Take; Refund puts it back
}

// Begin begins the next request.
func (c *Carried) Begin() { c.ofRequest = ofRequest{} }

// BeginCheck begins a check of the request.
func (c *Carried) BeginCheck(monotonicNs int64) { c.ofCheck = ofCheck{MonotonicNs: monotonicNs} }

// From is where a subject takes its units from.
type From uint8

// The places that have units.
const (
	Nowhere    From = iota
	Allotted        // the grant for which the request has waited
	LeaseTable      // what the proxy has leased
	OwnShare        // what the proxy may admit while the service is silent
)

// Asked is whether the quota service has been asked for a subject, and what came of it.
type Asked uint8

// How far it is.
const (
	NotAsked Asked = iota // not yet: it is asked, unless too many requests wait
	Asking                // the request waits for a grant, or for another one
	TimedOut              // nothing came in time: it waits no longer
	Rejected              // the service takes no more asks: it waits no longer
)

// Allotment is what a subject that waited gets of a grant of the quota service, or that the service denies. The zero
// value is none: it decides nothing.
type Allotment struct {
	leased.GrantUnits                   // units that the subject may take, until the grant's end by the monotonic clock
	Reason            Reason            // why the service denies; NotDenied if it does not
	WaitNs            int64             // of a denial: until the cost passes, or limit.Never
	Standings         []leased.Standing // how the rule's windows stand over all proxies, in the order of records
}

// Reason is why the service denies.
type Reason uint8

// The reasons.
const (
	NotDenied Reason = iota
	Denied           // too few units are left
	HeldBack         // too few are left, and enough would be if less were held
	Blocked          // the key was blocked before
)

// ReasonOf is that of a grant.
func ReasonOf(g *quota.Grant) Reason {
	switch {
	case !g.Denied:
		return NotDenied
	case g.Blocked:
		return Blocked
	case g.HeldBack:
		return HeldBack
	}
	return Denied
}

// Decides reports whether it decides about the cost. A denial does at any time, units before their end, and the zero
// value, which has ended, not even about a cost of 0.
func (a *Allotment) Decides(cost uint32, nowNs int64) bool {
	return a.Reason != NotDenied || a.Units >= cost && nowNs < a.EndNs
}
