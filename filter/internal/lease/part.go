package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Part is what the service is asked of one key, or told of it:
//
//	of                   made by                           source  account  Wire.Inspect
//	a rule that leases   Source.askPart                    set     -        no
//	a rule that holds    HoldSource.askPart, ReportPart    -       set      no
//	a look               clusterRule.lookPart              -       -        yes
type Part struct {
	Wire       quota.Part        // as it is sent; each request that joins the ask adds its cost
	Definition *quota.Definition // which Wire names by its number

	// Of a rule that leases: what requests leave of the grant goes into the key's lease.
	source   *Source
	leaseKey state.LeaseKey

	// Of a rule that holds: the account has what requests get of the grant. A Need's copy may be stale: only an
	// ask's is read, and WriteReport sets it to the one that the key has when the ask is sent.
	account *account.Account
}

// Holds reports whether the part reports an account: it is of a rule that holds, and no look.
func (p *Part) Holds() bool { return p.account != nil }

// ReportPart asks for no units, so that it only reports what is held.
func ReportPart(acc *account.Account) Part {
	return Part{Definition: acc.Definition, account: acc, Wire: quota.Part{Definition: acc.Definition.ID, Key: acc.Key}}
}

// CountsDenied reports whether an ask for it counts, or prolongs a block, even if it is denied.
func (p *Part) CountsDenied() bool { return p.Definition.CountsDenials() }

// reportNumber is that of the report which WriteReport has written.
func (p *Part) reportNumber() uint64 { return p.Wire.Number }

// AwaitsReport reports whether the part must wait, because a report of its account is under way.
func (p *Part) AwaitsReport() bool { return p.Holds() && p.account.AwaitsReport() }

// WriteReport writes what the part's account holds now into the part that is sent.
func (p *Part) WriteReport(now int64) {
	if p.Holds() {
		p.account = p.account.Reopen()
		p.account.WriteReport(&p.Wire, now)
	}
}

// GiveUpReport says that the service does not take the report now.
func (p *Part) GiveUpReport() {
	if p.Holds() {
		p.account.GiveUpReport(p.reportNumber())
	}
}

// ReportAgain has the account reported with the next message: the report may be lost, or never leave with the part.
func (p *Part) ReportAgain() {
	if p.Holds() {
		p.account.ReportAgain(p.reportNumber())
	}
}

// Need is what a request that waits needs of one key.
type Need struct {
	Part    Part // what an ask for it alone would ask for
	subject *decide.Subject
	grant   *Grant // that has given units to it or denied them, nil until one has
}

// clusterSource is the source of a clusterRule: a Source or a HoldSource.
type clusterSource interface {
	// askPart is what is asked for a cost of the subject's key. It may write the key's lease, or open its account.
	askPart(s *decide.Subject, cost uint32) Part
	// lookPart is what is asked for a look at the subject's key.
	lookPart(s *decide.Subject) Part
	// known is what LeaseOf tells of the subject's key.
	known(s *decide.Subject) *result.Lease
}

// AppendNeeds appends what the request of a pending verdict needs. Shadow rules come last.
func AppendNeeds(dst []Need, v *decide.Verdict) []Need {
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending && s.Shadow == shadow {
				dst = append(dst, Need{Part: s.Rule.Source.(clusterSource).askPart(s, s.Cost), subject: s})
			}
		}
	}
	return dst
}

// KeepGranted takes back what a request has got of grants that do not suffice any more, so that AppendNeeds asks anew.
// It returns the needs with a grant that does, in the memory of needs: the request takes of these once it has the
// others.
func KeepGranted(needs []Need) []Need {
	granted := needs[:0]
	for i := range needs {
		switch n := &needs[i]; {
		case n.subject.Outcome == decide.Pending: // its grant, if it has one, does not suffice
			n.Reclaim()
			n.subject.Quota.Grant.Received = false
		case n.grant != nil:
			granted = append(granted, *n)
		default: // it needs no grant any more: the rule has found units elsewhere, or does without
		}
	}
	return granted
}

// Reclaim takes back what the request has got for the need and has not taken.
func (n *Need) Reclaim() {
	if n.grant == nil || n.grant.Denied {
		return
	}
	own := &n.subject.Quota.Grant
	n.grant.reclaim(own.Units)
	own.Units = 0
}
