package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// The service blocks a key, and a worker remembers that for maxRememberNs. A rule with a block leases nothing, so each
// request asks for itself unless its worker knows of the block:
//
//	                           a rule that leases nothing         a rule that holds
//	the service says it        readBlock: grant.blockNs           the same
//	requests that asked hear   deny: one Denied, others Blocked   the same
//	the worker remembers it    noteDenial: in the key's lease,    noteBlock: in account.block
//	                           as a DeniedCost of 0
//	later requests hear        Source.Check, by Lease.Blocks:     HoldSource.Check, by recallBlock:
//	                           Blocked                            Blocked
//
// If each denied ask changes what the key has counted, each request must ask: nothing is remembered then.
//
// For example, a limit of 3 a minute with a block of 1 h:
//
//	0 s    Two requests wait for one ask, when none is left. It is denied, and the key was not Blocked before: the ask
//	       has begun the block. The first request is told Denied, and the rule counts a block. The second is told
//	       Blocked.
//	0.5 s  Another request is told Blocked, and nobody asks.
//	1.2 s  The next one asks. The service says that the key was Blocked before, so it is told Blocked. The worker
//	       remembers that for another second.

// blockDenial is a denial that the worker remembers of a blocked key, for an account.
type blockDenial struct {
	decide.Grant
	untilNs int64 // no longer than the key is blocked, and maxRememberNs
}

// readBlock finds out whether the denial is of a blocked key, and whether the key was blocked before.
func (g *grant) readBlock() {
	g.tellBlocked = g.Blocked
	block := g.part.definition.Block()
	if block < 0 || block >= len(g.standings) || !g.Denied {
		return
	}
	if st := &g.standings[block]; st.Used > 0 {
		g.blockNs = st.ResetNs
	}
}

// deny tells a request that it is denied. If the ask has begun a block, the first request is told Denied, because its
// rule has begun the block, and all others are told Blocked.
func (g *grant) deny(n *Need) {
	g.writeTo(n, 0)
	if g.blockNs > 0 && !g.tellBlocked {
		n.subject.Rule.Metrics.Blocks++
		g.tellBlocked = true
	}
}

// remembersBlock reports whether the key is blocked, and stays so without further asks.
func (g *grant) remembersBlock() bool { return g.blockNs > 0 && !g.part.countsDenied() }

// noteBlock remembers a grant that finds the key blocked.
func (acc *account) noteBlock(g *grant) {
	if !g.remembersBlock() {
		return
	}
	acc.block = &blockDenial{Grant: g.forSubject(0), untilNs: min(g.blockNs, g.cameNs+maxRememberNs)}
	acc.block.Blocked = true // for all later requests, also if nobody has waited for the grant any more
}

// recallBlock gives the subject the denial that the worker remembers of its key, if the key is blocked.
func (src *HoldSource) recallBlock(s *decide.Subject) bool {
	if !src.blocks {
		return false
	}
	acc, now := src.account(s), s.Quota.NowNs
	if acc == nil || acc.block == nil || now >= acc.block.untilNs {
		return false
	}
	g := &s.Quota.Grant
	*g = acc.block.Grant
	if g.WaitNs != limit.Never {
		g.WaitNs -= now - g.NowNs
	}
	return true
}
