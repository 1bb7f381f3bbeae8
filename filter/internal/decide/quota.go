package decide

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Quota is how far a subject has come with the quota service. It carries the request over from one call of
// Decide to the next. Who sets it, where a request has to wait:
//
//	Subject.Begin   Wait = NotWaited, no Allotment, From = Nowhere
//	Source.Check    From = Nowhere: too few units here. The outcome is Pending
//	talk.Client     Wait = Waits, and it asks the service. Then Allotment = what it gets of a grant, or
//	                Wait = TimedOut or Rejected
//	Source.Check    From = Allotted if the allotment suffices, LeaseTable or OwnShare if units are there by now.
//	                Else it is Pending again if it still Waits, Silent if it TimedOut, Contended if Rejected
//	Source.Take     takes the units from where From says; Taken, for Refund
type Quota struct {
	waited
	checked
	Taken leased.GrantLeft // by Source.Take, for Refund, if From is the LeaseTable: the units, as Put takes them

	// Memory:
	LeaseMemory *state.LeaseEntry // for Lease; nil until one is read
	Share       []limit.Window    // CountedKey.Windows, where OwnShare decides
}

// waited is what the request carries through its waits, from one call of Decide to the next.
type waited struct {
	Wait Wait // package talk writes it, and package lease all else of a Quota

	Allotment Allotment // what the service has granted for the request, or denies
	// Account, of a rule that holds, is the key's account of package lease in which Source.Take counts the units; nil if
	// it counts them in none. The request's hold.Hold takes it over.
	Account hold.Account
	// NotedUncharged, by Source.Take, says that the lease says already that the service must charge the cost. Take may be
	// called once more, if another worker wrote first, or if another rule had to ask.
	NotedUncharged bool
}

// checked is what the last check has found.
type checked struct {
	From        From              // where the units are: Take, Refund and Usage follow it
	MonotonicNs int64             // when it looked, by the monotonic clock
	Lease       *state.LeaseEntry // of the key, of a rule that leases; nil if it has read none, or the store failed
	// How the windows stand over all proxies, by the allotment or else the lease, in the order of records. If the subject
	// is Known and not counted here, each window has one.
	Standings []leased.Standing
}

// BeginQuotaCheck begins a check of a subject of scope cluster, or a look or an operation, at an instant of both
// clocks. Nothing is known of the key, and no Record of this proxy is read, unless OwnShare decides in the end.
func (s *Subject) BeginQuotaCheck(wallNs, monotonicNs int64) {
	s.CountedKey.Windows = s.Windows
	s.Known = false
	s.beginRecord(wallNs)
	s.Quota.checked = checked{MonotonicNs: monotonicNs}
}

// isCountedHere reports whether what this proxy has counted decides about the subject. In a rule of scope cluster that
// is so only by its own share: else the quota service has said how the key stands, or must be asked.
func (s *Subject) isCountedHere() bool {
	return s.Rule.Policy.Scope != policy.ScopeCluster || s.Quota.From == OwnShare
}

// isByOnUnavailable reports whether on_unavailable has decided about the subject: by this proxy's share, or because
// nothing could decide in the service's place. It has not if another rule denied before.
func (s *Subject) isByOnUnavailable() bool {
	switch s.outcome {
	case Silent, Starting:
		return true
	case NotAsked:
		return false
	default:
		return s.Quota.From == OwnShare
	}
}

// Wait is what a request that asks the quota service may still wait for.
type Wait uint8

// The waits.
const (
	NotWaited Wait = iota // it may wait, unless too many others do
	Waits                 // it waits for a grant, or for another one
	TimedOut              // nothing came in time: it waits no longer
	Rejected              // the service takes no more asks: it waits no longer
)

// Allotment is what a subject that waited gets of a grant of the quota service, or that the service denies. The zero
// value is none: it decides nothing.
type Allotment struct {
	Units       uint32            // that the subject may take
	EndNs       int64             // until when it may, by the monotonic clock
	Denied      bool              // too few units are left
	HeldBack    bool              // of a denial: enough would be left, if less were held
	Blocked     bool              // of a denial: the key was blocked before
	WaitNs      int64             // of a denial: until the cost passes, or limit.Never
	MonotonicNs int64             // when it came, by the monotonic clock
	Standings   []leased.Standing // how the rule's windows stand over all proxies, in the order of records
}

// Decides reports whether it decides about the cost.
func (a *Allotment) Decides(cost uint32, nowNs int64) bool {
	return a.Denied || a.Units >= cost && nowNs < a.EndNs
}

// Denial is the outcome of an allotment that denies.
func (a *Allotment) Denial() Outcome {
	switch {
	case a.Blocked:
		return Blocked
	case a.HeldBack:
		return HeldBack
	}
	return Denied
}

// From is where a subject of scope cluster takes its units from.
type From uint8

// The places that have units.
const (
	Nowhere    From = iota
	Allotted        // the grant for which the request has waited
	LeaseTable      // what the proxy has leased
	OwnShare        // what the proxy may admit while the service is silent
)
