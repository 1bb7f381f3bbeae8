package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// HandOut hands out what the service has granted for a part of an ask. The verdicts are those of the requests that have
// waited for the ask, in the order in which they came. The grant is nil if the service has none for the part.
//
// Units of a rule without holds go, in this order:
//
//	to                                     by           what is not spent there
//	the requests that have waited          give         dropAllotment: goes back when it is decided, or asks again
//	the key's lease, for later requests    noteInLease  CollectIdle: goes back when it is idle
//	the service, if they cannot stay       noteInLease
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. Each gets one, and 18 are put into the lease. The
// client of the second request has left, so quota.Return{Grant: 7, Units: 1} is sent. Later requests take 4 units of
// the lease, and then none comes for idleNs: quota.Return{Grant: 7, Units: 14} is sent.
//
// Units of a rule that holds are in the key's account. Nothing goes back: what requests do not hold, the account's next
// report leaves out.
func HandOut(p *Part, grant *quota.Grant, trip Trip, verdicts []*decide.Verdict) {
	if grant == nil {
		grant = &quota.Grant{Failed: true}
	}
	isUsable := !grant.Failed
	if p.Account != nil {
		report := p.Wire.Report
		isUsable = p.Account.EndReport(report.Number, grant, trip.CameNs)
	}
	h := &handout{answer: newAnswer(p, grant, trip, isUsable)}
	h.rest = h.granted
	for _, v := range verdicts {
		for _, s := range v.Subjects {
			if d := s.Cluster.AskedFor; d != nil && d.ID == p.Definition.ID { // no other rule has that number
				h.give(s)
			}
		}
	}
	if p.Account != nil {
		h.noteInAccount(p.Account)
	} else {
		h.noteInLease()
	}
}

// handout is an answer while HandOut hands it out.
type handout struct {
	answer                      // it stays as it is
	rest      leased.GrantUnits // what no request has got yet
	stays     bool              // the rest, in the key's lease
	hasDenied bool              // a request has been told the denial
}

// give gives a subject the units that it needs, if nobody has got them, or the denial, if what was denied costs no
// more.
func (h *handout) give(s *decide.Subject) {
	switch {
	case !h.isUsable:
	case h.denies() && s.Cost >= h.part.Wire.Cost:
		h.deny(s)
	case !h.denies() && h.rest.Units >= s.Cost && h.cameNs < h.rest.EndNs:
		h.rest.Units -= s.Cost
		s.Cluster.Allotment = h.allotment(h.reason)
		s.Cluster.Allotment.GrantUnits = leased.GrantUnits{GrantID: h.rest.GrantID, Units: s.Cost}
	}
}

// deny tells a request that it is denied. If the ask has begun a block, the first request is told Denied, because its
// rule has begun the block, and the next ones are told Blocked.
func (h *handout) deny(s *decide.Subject) {
	reason := h.reason
	if h.beginsBlock() {
		if h.hasDenied {
			reason = cluster.Blocked
		} else {
			s.Rule.Metrics.BlocksBegun++
		}
	}
	s.Cluster.Allotment = h.allotment(reason)
	h.hasDenied = true
}

// noteInAccount drops what no request has got: the account has all that the service has granted. It remembers a block.
func (h *handout) noteInAccount(acc *account.Account) {
	if !h.isUsable { // also if it came late: the report was given up
		return
	}
	if h.rest.Units > 0 {
		acc.DropGiven(h.rest.Units)
	}
	if h.remembersBlock() {
		acc.RememberBlock(account.Block{Denial: h.denial(), Standings: h.standings})
	}
}

// noteInLease writes the answer into the key's lease. What no request has got stays there, or goes back.
func (h *handout) noteInLease() {
	src := h.part.source
	at := src.leases.At(h.part.leaseKey)
	wallNs := src.worker.clock.Now()
	written := at.Change(wallNs, h.cameNs, h.writeInto) // a func literal would take TinyGo three allocations
	if written && h.stays {
		at.Watch(h.rest.GrantID, h.cameNs)
	} else {
		src.leases.GiveBack(h.rest)
	}
}

// writeInto writes the answer into the key's lease, and puts the rest there if that may stay.
func (h *handout) writeInto(e *state.LeaseEntry) bool {
	h.writeAnswer(&e.Lease, h.part.source, e.NowNs)
	mayStay := h.isLeased && h.isUsable && !h.denies() && e.NowNs < h.rest.EndNs
	h.stays = mayStay && h.rest.Units > 0 && e.Put(h.rest)
	if h.stays {
		e.Allow(h.rest.Units)
	}
	return true
}

// writeAnswer writes into the source's lease what the service said of the key. The first line that is true decides:
//
//	the answer                            the telling  RefillUntilNs  SilentUntilNs      standings, rate, a denial
//	is late, and the lease has standings  ends         stays          stays              stay
//	is not usable                         ends         0              a second from now  stay
//	else                                  ends         0              0                  are written
//
// The first line is because a later answer may have come before the late one.
func (h *handout) writeAnswer(l *leased.Lease, src *LeaseSource, now int64) {
	l.Uncharged.EndTelling(h.part.told, h.isUsable)
	if h.isLate && len(l.Standings) > 0 {
		return
	}
	l.RefillUntilNs, l.SilentUntilNs = 0, 0
	if !h.isUsable {
		l.SilentUntilNs = now + quota.MaxRememberNs
		return
	}
	given := h.granted.Units - h.rest.Units
	l.Standings = append(l.Standings[:0], h.standings...)
	l.Rate.Add(now, src.refill.rateNs, given) // as takeLease does for what it takes
	switch {
	case h.remembersBlock():
		l.Block(h.denial())
	case h.denies() && src.keeps:
		l.Deny(h.part.Wire.Cost, h.denial())
	}
}
