package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Part is what the service is asked of one key, or told of it. It is a part of one ask:
//
//	what           made by     has                        Tell adds          its grant goes to
//	units to take  leasePart   source; Wire.Cost, Ahead   what is Uncharged  HandOut: requests, then the key's lease
//	a refill       leasePart   source; Wire.Ahead         what is Uncharged  HandOut: the key's lease
//	units to hold  holdPart    Account; Wire.Cost         a report           HandOut: requests; the Account knows all
//	a report       ReportPart  Account                    a report           HandOut: the Account knows it
//	a look         lookPart    Wire.Inspect               nothing            Look.Note
//	a probe        ProbePart   Wire.Inspect               nothing            nobody: that it came is enough
//
// While an ask is queued, requests Join its parts. Then Tell completes them.
type Part struct {
	Wire       quota.Part        // as it is sent
	Definition *quota.Definition // which Wire names by its number

	// What the service grants, and no request takes, is kept in one of:
	source   *LeaseSource     // of a rule without holds: in the key's lease
	leaseKey state.LeaseKey   // by which it finds that
	Account  *account.Account // of a rule that holds: the part reports it. Others report nothing

	// Of a rule without holds:
	mayTell bool           // the lease had Uncharged units when a request of the ask last read it
	told    leased.Telling // what the part has told of these
}

// lookPart is what is asked for a look at the subject's key.
func (src *clusterRule) lookPart(s *decide.Subject) Part {
	d := src.definition(s)
	return Part{Definition: d, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Inspect: true,
	}}
}

// leasePart asks for a cost of the subject's key, whose lease the last Check has read. A refill has a cost of 0: it
// only asks ahead of need.
func (src *LeaseSource) leasePart(s *decide.Subject, cost uint32) Part {
	e, d := s.Cluster.Lease, src.definition(s)
	p := Part{Definition: d, source: src, leaseKey: e.Key(), mayTell: e.Uncharged.Units > 0, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Cost: cost, Waiting: cost,
		Shadow: s.Shadow, NoBlock: s.MustNotBlock(),
	}}
	if src.keeps {
		p.Wire.Ahead = src.refill.ahead(e)
	}
	return p
}

// holdPart asks for the subject's cost, and reports what is held.
func holdPart(s *decide.Subject, acc *account.Account) Part {
	return Part{Definition: acc.Definition, Account: acc, Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key, Cost: s.Cost, Waiting: s.Cost,
		Shadow: s.Shadow, NoBlock: s.MustNotBlock(),
	}}
}

// ReportPart asks for no units, so that it only reports what is held.
func ReportPart(acc *account.Account) Part {
	return Part{Definition: acc.Definition, Account: acc, Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key,
	}}
}

// ProbePart asks how a key stands that nobody has, to hear whether the service answers.
func (w *Worker) ProbePart() Part {
	d := &w.definitions.ofRules[0]
	return Part{Definition: d, Wire: quota.Part{Definition: d.ID, Inspect: true}}
}

// Join adds what another part for the same units asks for. For example, two requests join a refill of key k:
//
//	what joins       needs         the part then
//	                               Cost  Waiting  Ahead
//	the refill       60 ahead         0        0     60
//	first request    2 of key k       2        2     60
//	second request   3 of key k       2      2+3     60
//
// So of its fields:
//
//	Cost             is of the first request: the service grants at least this much, or denies
//	Waiting          is of all requests
//	Ahead            is of what has made the ask
//	Shadow, NoBlock  are of the rule and the key, so each request has the same. A report has none: the first request
//	                 says them
func (p *Part) Join(other *Part, isFirstRequest bool) {
	if isFirstRequest {
		p.Wire.Cost = other.Wire.Cost
		p.Wire.Shadow, p.Wire.NoBlock = other.Wire.Shadow, other.Wire.NoBlock
	}
	p.Wire.Waiting = limit.AddSaturating(p.Wire.Waiting, other.Wire.Waiting)
	p.mayTell = p.mayTell || other.mayTell
}

// Tell completes the part just before its ask is sent: it reports what the account holds, or tells which units are
// Uncharged.
func (p *Part) Tell(now int64) {
	switch {
	case p.Account != nil:
		p.Account.BeginReport(&p.Wire, now)
	case p.mayTell:
		p.tellUncharged(now)
	}
}

// CountsDenied reports whether an ask for it counts, or prolongs a block, even if it is denied.
func (p *Part) CountsDenied() bool { return p.Definition.CountsDenials() }

// StartWaiting marks the subjects of a pending verdict as Asking when the request first waits, and counts those that
// are pending.
func StartWaiting(v *decide.Verdict) {
	for _, s := range v.Subjects {
		s.Cluster.Asked = cluster.Asking
		if s.IsPending() {
			s.Rule.Metrics.QuotaWaited++
		}
	}
}

// StopWaiting ends the wait of a verdict's request, for the reason why, unless it has stopped before.
func StopWaiting(v *decide.Verdict, why cluster.Asked) {
	for _, s := range v.Subjects {
		if s.Cluster.Asked == cluster.Asking {
			s.Cluster.Asked = why
		}
	}
}

// BeginAsk begins an ask for what the subjects of a pending verdict need, and returns its parts. Those of shadow rules
// are last: if a counter is shared, no rule that enforces is denied by the block that a trial begins. If the request
// has waited before, a subject may have got units that do not suffice: these go back first. It may open accounts.
func BeginAsk(v *decide.Verdict) []Part {
	pending := 0
	for _, s := range v.Subjects {
		if s.IsPending() {
			pending++
		}
	}
	parts := make([]Part, 0, pending)
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.IsPending() && s.Shadow == shadow {
				dropAllotment(s)
				p := s.Rule.Source.(clusterSource).askPart(s)
				s.Cluster.AskedFor = p.Definition
				parts = append(parts, p)
			}
		}
	}
	return parts
}

// GiveBackUnused gives back what the subjects of a verdict have got and not taken: the request is decided.
func GiveBackUnused(v *decide.Verdict) {
	for _, s := range v.Subjects {
		dropAllotment(s)
	}
}

// dropAllotment gives back what the subject has got and not taken. A denial is forgotten.
func dropAllotment(s *decide.Subject) {
	if s.Cluster.Allotment.Units > 0 {
		s.Rule.Source.(clusterSource).giveBack(s)
	}
	s.Cluster.Allotment = cluster.Allotment{}
}
