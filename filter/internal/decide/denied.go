package decide

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Keep is what a rule keeps of a hit that it has denied by its limits:
//
//	the rule has    Units: the cost, if it countsDenied  Block, if the hit beginsBlock
//	neither         -                                    -
//	count_denied    of scope proxy only                  -
//	block           -                                    yes
//	both            of scope proxy only                  yes
//
// What the quota service has denied, it has kept: this proxy keeps nothing of that. Of what OwnShare has denied,
// the proxy keeps the Block alone.
type Keep struct {
	Units uint32 // they are counted, though the hit is denied
	Block bool   // a block of the key begins, or is prolonged
}

// storeUntaken stores what a hit leaves that is not taken: what the rule keeps of a denial, or else that the record
// has moved to the present.
func (s *Subject) storeUntaken(now int64) {
	if kept := s.storeDenied(now); !kept && s.known {
		s.Rule.Source.Persist(s)
	}
}

// storeDenied stores what the rule keeps of a hit that it has denied. If it cannot be stored, nothing is kept: the hit
// was denied.
func (s *Subject) storeDenied(now int64) (kept bool) {
	if s.outcome != Denied && s.outcome != Blocked {
		return false
	}
	m, found := &s.Rule.Metrics, s.outcome
	for range state.MaxRetries {
		keep := s.toKeep(found)
		if keep == (Keep{}) {
			return false
		}
		switch s.keepDenied(keep) {
		case state.OK:
			return true
		case state.Full: // a newcomer without a slot, and still denied
			m.Full++
			return false
		case state.Mismatch: // another worker wrote first
		default:
			return s.giveUp(&m.Errors)
		}
		found = s.recheckDenied(now)
		if found == Failed {
			return s.giveUp(&m.Errors)
		}
	}
	return s.giveUp(&m.Contention)
}

// keepDenied stores what is to be kept. Then the wait is the one from the new record. But the denial's wait stays if
// the new record has room by now, or never has room.
func (s *Subject) keepDenied(keep Keep) state.Status {
	passNs, status := s.Rule.Source.KeepDenied(s, keep)
	if status == state.OK && passNs != limit.Never && passNs > s.Record.Now {
		s.passNs = passNs
	}
	return status
}

// giveUp ends storeDenied, counted by why: the record in memory may have what was never stored.
func (s *Subject) giveUp(why *uint64) (kept bool) {
	*why++
	s.forget()
	return false
}

// recheckDenied reads the key again, because another worker wrote first, or the refund of this request. The denial
// stays, and its wait, unless the key is blocked by now. But only what is found now begins a block. For example, after
// a denial with a wait of 40 s:
//
//	found now  because                              the wait       beginsBlock
//	Denied     another worker took units            40 s           yes
//	Blocked    another worker has begun the block   until its end  no, unless the rule prolongs blocks
//	HasRoom    another worker refunded units        40 s           no
//	HasRoom    this request has refunded what an    40 s           no
//	           earlier subject took
//	Pending    the service answers another worker   40 s           no
//	Failed     a call into the proxy failed         40 s           no
//
// Units stay those of the denial.
//
// A rule of scope cluster has been denied by OwnShare. If another worker has had an answer of the quota service since,
// Quota.From is not OwnShare any more, whatever is found: nothing is kept here, and the metric QuotaUnavailable misses
// the denial. That is left so, because it is rare: others must write the share and the lease within this decision.
func (s *Subject) recheckDenied(now int64) (found Outcome) {
	again := s.Rule.Source.Recheck(s, now)
	if again.Outcome == Blocked {
		s.passNs = again.PassNs
	}
	if again.Outcome != Failed {
		s.Rule.Metrics.CASRetries++
	}
	return again.Outcome
}

// toKeep is what the rule keeps of the denied hit, whose key was found like this last.
func (s *Subject) toKeep(found Outcome) (keep Keep) {
	if !s.isCountedHere() || s.Cost == 0 {
		return keep
	}
	if s.Rule.countsDenied {
		keep.Units = s.Cost
	}
	keep.Block = s.beginsBlock(found)
	return keep
}

// beginsBlock reports whether the denied hit begins a block of its key or prolongs it. It does not if another worker
// has made room since, or has begun the block.
func (s *Subject) beginsBlock(found Outcome) bool {
	block := s.Rule.Policy.Block
	if block == nil || s.MustNotBlock() {
		return false
	}
	return found == Denied || found == Blocked && block.Prolong && s.hasOwnBlock()
}

// hasOwnBlock reports whether the blocked key has a record, or gets one, because its denials are counted. Else it is
// blocked by its page's floor (see package state), as are others: if it prolonged that, keys that were never denied
// would keep a page blocked for good.
func (s *Subject) hasOwnBlock() bool { return s.Record.HasRecord() || s.Rule.countsDenied }

// MustNotBlock reports whether no denial of the subject begins a block or prolongs it, because the rule is in shadow
// mode and the block would be one of a rule that enforces.
func (s *Subject) MustNotBlock() bool { return s.Shadow && s.Rule.blockIsEnforcedByOther }
