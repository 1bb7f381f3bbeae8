package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Part is what the service is asked of one key, or told of it:
//
//	of                   made by                           keeper          what it does
//	a rule that leases   Source.askPart                    *leaseKeeper    asks for units
//	a rule that holds    HoldSource.askPart, ReportPart    accountKeeper   asks for units, and reports the account
//	a look               clusterRule.lookPart              none            asks how the key stands: Wire.Inspect
type Part struct {
	Wire       quota.Part        // as it is sent; each request that joins the ask adds its cost
	Definition *quota.Definition // which Wire names by its number

	// What keeps what the service grants for it: one of them has a value.
	lease   leaseKeeper // by value, so that an ask allocates nothing for it
	account accountKeeper
}

// keeper keeps what the service grants for the part. It may lie in the part.
func (p *Part) keeper() keeper {
	if p.account.account != nil {
		return p.account
	}
	return &p.lease
}

// ReportPart asks for no units, so that it only reports what is held.
func ReportPart(acc *account.Account) Part {
	return Part{Definition: acc.Definition, account: accountKeeper{acc}, Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key,
	}}
}

// CountsDenied reports whether an ask for it counts, or prolongs a block, even if it is denied.
func (p *Part) CountsDenied() bool { return p.Definition.CountsDenials() }

// Account is the account that the part reports, nil if it reports none. Read it of an ask's parts only: a Need's copy
// may have an account that was forgotten since.
func (p *Part) Account() *account.Account { return p.account.account }

// WriteReport writes what the account of the part's key holds now into Wire, which is sent.
func (p *Part) WriteReport(b *account.Book, now int64) {
	if acc := p.Account(); acc != nil {
		p.account = accountKeeper{b.WriteReport(acc, &p.Wire, now)}
	}
}

// Need is what a request that waits needs of one key.
type Need struct {
	Part    Part // what an ask for it alone would ask for
	subject *decide.Subject
	handout *Handout // that has given units to it or denied them, nil until one has
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
			if s.Outcome() == decide.Pending && s.Shadow == shadow {
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
		case n.subject.Outcome() == decide.Pending: // its grant, if it has one, does not suffice
			n.Reclaim()
			n.subject.Quota.Grant.Received = false
		case n.handout != nil:
			granted = append(granted, *n)
		default: // it needs no grant any more: the rule has found units elsewhere, or does without
		}
	}
	return granted
}

// Reclaim takes back what the request has got for the need and has not taken.
func (n *Need) Reclaim() {
	if n.handout == nil || n.handout.grant.Denied {
		return
	}
	own := &n.subject.Quota.Grant
	n.handout.reclaim(own.Units)
	own.Units = 0
}
