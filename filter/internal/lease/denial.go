package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// The service blocks a key, and a worker remembers that for account.MaxRememberNs. A rule with a block leases
// nothing, because package policy sets its lease to off: see fitsScope there. So each request asks for itself, unless
// its worker knows of the block:
//
//	                           denied, not blocked:         blocked:                    blocked:
//	                           the rule leases              the rule leases nothing     the rule holds
//	the service says it        quota.Grant.Denied           readBlock: blockNs          readBlock: blockNs
//	requests that asked hear   deny: all Denied             deny: one Denied,           deny: one Denied,
//	                                                        others Blocked              others Blocked
//	the worker remembers it    writeDenial: in the key's    writeDenial: in the key's   accountKeeper: by
//	                           lease, by Lease.Deny         lease, by Lease.Block       Account.RememberBlock
//	later requests hear        Source.Check, by             Source.Check, by            HoldSource.Check, by
//	                           Lease.Denies: Denied         Lease.Blocks: Blocked       recallBlock: Blocked
//
// Else nothing is remembered, and each request asks: if a rule that leases nothing or holds is denied without a block,
// or if each denied ask changes what the key has counted.
//
// For example, a limit of 3 a minute with a block of 1 h:
//
//	0 s    Two requests wait for one ask, when none is left. It is denied, and the key was not Blocked before: the ask
//	       has begun the block. The first request is told Denied, and the rule counts a block. The second is told
//	       Blocked.
//	0.5 s  Another request is told Blocked, and nobody asks.
//	1.2 s  The next one asks. The service says that the key was Blocked before, so it is told Blocked. The worker
//	       remembers that for another second.

// readBlock finds out until when the key is blocked.
func (h *Handout) readBlock() {
	block := h.part.Definition.Block()
	if block < 0 || block >= len(h.standings) || !h.grant.Denied {
		return
	}
	if st := &h.standings[block]; st.Used > 0 {
		h.blockNs = st.ResetNs
	}
}

// deny tells a request that it is denied. If the ask has begun a block, the first request is told Denied, because its
// rule has begun the block, and all others are told Blocked.
func (h *Handout) deny(n *Need) {
	h.writeTo(n, 0)
	switch {
	case h.blockNs == 0 || h.grant.Blocked: // all are told what the service says
	case h.hasToldBlock:
		n.subject.Quota.Allotment.Blocked = true
	default:
		n.subject.Rule.Metrics.BlocksBegun++
		h.hasToldBlock = true
	}
}

// remembersBlock reports whether the key is blocked, and stays so without further asks.
func (h *Handout) remembersBlock() bool { return h.blockNs > 0 && !h.part.CountsDenied() }

// writeDenial writes the denial into the lease, of what was asked for or of a blocked key. Nobody asks again until the
// wait or the block is over, and no longer than account.MaxRememberNs.
func (h *Handout) writeDenial(l *state.Lease, now int64) {
	d := state.Denial{UntilNs: now + account.MaxRememberNs, PassNs: limit.Never}
	if h.grant.WaitNs != limit.Never {
		d.PassNs = h.trip.CameNs + h.grant.WaitNs
		d.UntilNs = min(d.UntilNs, now+h.grant.WaitNs)
	}
	if !h.remembersBlock() {
		l.Deny(h.part.Wire.Cost, d, now)
		return
	}
	d.UntilNs = min(d.UntilNs, h.blockNs)
	l.Block(d, now)
}

// recallBlock gives the subject the denial that the worker remembers in the key's account, if the key is blocked.
func (src *HoldSource) recallBlock(s *decide.Subject, acc *account.Account) bool {
	if !src.blocks || acc == nil {
		return false
	}
	denial, blocked := acc.RecallBlock(s.Quota.MonotonicNs)
	if blocked {
		s.Quota.Allotment = denial
	}
	return blocked
}
