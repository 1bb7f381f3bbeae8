package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Part is what the service is asked of one key, or told of it. It is a part of one ask. All that make one are here.
type Part struct {
	Wire       quota.Part        // as it is sent; each request that joins the ask adds its cost
	Definition *quota.Definition // which Wire names by its number

	lease    leaseAt          // of a rule that leases: keeps what the service grants, and no request takes
	Reporter account.Reporter // of a rule that holds: its account counts what the service grants. Others report nothing
}

// lookPart is what is asked for a look at the subject's key.
func (src *clusterRule) lookPart(s *decide.Subject) Part {
	d := src.definition(s)
	return Part{Definition: d, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Inspect: true,
	}}
}

// leasePart asks for a cost of the subject's key, and says how many units of it were spent in silence. A refill has a
// cost of 0: it only asks ahead of need.
func (src *Source) leasePart(s *decide.Subject, cost, spent uint32) Part {
	e, d := s.Carried.Lease, src.definition(s)
	p := Part{Definition: d, lease: leaseAt{src, e.Key()}, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Cost: cost, Waiting: cost,
		Spent: spent, Shadow: s.Shadow, NoBlock: s.MustNotBlock(),
	}}
	if src.keeps {
		p.Wire.Ahead = src.refill.ahead(e)
	}
	return p
}

// holdPart asks for the subject's cost, and reports what is held.
func holdPart(s *decide.Subject, acc *account.Account) Part {
	return Part{Definition: acc.Definition, Reporter: acc.Reporter(), Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key, Cost: s.Cost, Waiting: s.Cost,
		Shadow: s.Shadow, NoBlock: s.MustNotBlock(),
	}}
}

// ReportPart asks for no units, so that it only reports what is held.
func ReportPart(acc *account.Account) Part {
	return Part{Definition: acc.Definition, Reporter: acc.Reporter(), Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key,
	}}
}

// ProbePart asks how a key stands that nobody has, to hear whether the service answers.
func (w *Worker) ProbePart() Part {
	d := &w.definitions.ofRules[0]
	return Part{Definition: d, Wire: quota.Part{Definition: d.ID, Inspect: true}}
}

// CountsDenied reports whether an ask for it counts, or prolongs a block, even if it is denied.
func (p *Part) CountsDenied() bool { return p.Definition.CountsDenials() }

// Need is that a request which waits needs its cost of one key.
type Need struct {
	subject    *decide.Subject
	definition uint32 // the number of the key's limits: a request has one need of each

	// Of the units that the request has got:
	keeper keeper // that takes back what is left of them, nil if it has got none
	grant  leased.GrantID
}

// BeginAsk begins an ask for what the request of a pending verdict needs: it may write leases and open accounts, as
// beginAsk says. It returns the parts of the ask, those of shadow rules last, and what the request now waits for. If
// the request has waited before, earlier is what it needed then.
func BeginAsk(earlier []Need, v *decide.Verdict) (needs []Need, parts []Part) {
	pending := 0
	for _, s := range v.Subjects {
		if s.IsPending() {
			pending++
		}
	}
	needs, parts = keepGranted(earlier), make([]Part, 0, pending)
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.IsPending() && s.Shadow == shadow {
				p := s.Rule.Source.(clusterSource).beginAsk(s)
				needs = append(needs, Need{subject: s, definition: p.Wire.Definition})
				parts = append(parts, p)
			}
		}
	}
	return needs, parts
}

// keepGranted returns those of a request's needs that it need not ask for anew, in the memory of needs. The request has
// been decided again, and has to wait again. What becomes of a need:
//
//	outcome of its subject  has units  the need
//	Pending                 or not     ends: the units do not suffice, and go back. BeginAsk makes another need of the
//	                                   subject
//	any other               yes        is kept: the request takes them once it has those of the other rules
//	any other               no         ends: the rule has found units elsewhere, does without, or denies
func keepGranted(needs []Need) []Need {
	granted := needs[:0]
	for i := range needs {
		switch n := &needs[i]; {
		case n.subject.IsPending():
			n.Reclaim()
		case n.keeper != nil:
			granted = append(granted, *n)
		}
	}
	return granted
}

// Reclaim takes back what the request has got for the need and has not taken. It is called once the request is decided,
// or asks for the need anew.
func (n *Need) Reclaim() {
	if n.keeper == nil {
		return
	}
	c := &n.subject.Carried
	n.keeper.takeBack(leased.GrantLeft{GrantID: n.grant, Units: c.Allotment.Units})
	c.Allotment = allot.Allotment{}
}
