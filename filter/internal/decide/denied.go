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
	if kept := s.storeDenied(now); !kept && s.finding.Known {
		s.Rule.Source.Persist(s)
	}
	s.noteRebased()
}

// storeDenied stores what the rule keeps of a hit that it has denied. If it cannot be stored, nothing is kept: the hit
// was denied. If another worker writes first, the key is checked again, and found is how it stands by then. The hit
// stays denied for the reason for which it was.
func (s *Subject) storeDenied(now int64) (kept bool) {
	m, found := &s.Rule.Metrics, s.finding.Found
	if found != Denied && found != Blocked { // it was not denied, or by no limit, or for what is held
		return false
	}
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
		case state.Mismatch: // another worker wrote first, or the refund of this request
		default:
			return s.giveUp(&m.Errors)
		}
		again := s.Rule.Source.Recheck(s, now)
		if again.Found == Failed {
			return s.giveUp(&m.Errors)
		}
		m.CASRetries++
		found = again.Found
		s.finding.Known = again.Known
		if found == Blocked { // else the denial's wait stays, also if there is room by now
			s.finding.PassNs = again.PassNs
		}
	}
	return s.giveUp(&m.Contention)
}

// keepDenied stores what is to be kept. Then the wait is the one from the new record. But the denial's wait stays if
// the new record has room by now, or never has room.
func (s *Subject) keepDenied(keep Keep) state.Status {
	passNs, status := s.Rule.Source.KeepDenied(s, keep)
	if status == state.OK && passNs != limit.Never && passNs > s.Record.Now {
		s.finding.PassNs = passNs
	}
	return status
}

// giveUp ends storeDenied, counted by why: the record in memory may have what was never stored.
func (s *Subject) giveUp(why *uint64) (kept bool) {
	*why++
	s.finding.Known = false
	return false
}

// toKeep is what the rule keeps of the denied hit, if that is how its key stands by now.
//
// A rule of scope cluster has been denied by OwnShare. If another worker has had an answer of the quota service since,
// Cluster.From is not OwnShare any more: nothing is kept here, and the metric QuotaUnavailable misses the denial. That
// is left so, because it is rare: others must write the share and the lease within this decision.
func (s *Subject) toKeep(found Found) (keep Keep) {
	if !s.isCountedHere() || s.Cost == 0 {
		return keep
	}
	if s.Rule.countsDenied {
		keep.Units = s.Cost
	}
	keep.Block = s.beginsBlock(found)
	return keep
}

// beginsBlock reports whether the denied hit begins a block of its key or prolongs it. It does neither if the key has
// room by now, or lacks only what is held, or if the quota service must be asked.
func (s *Subject) beginsBlock(found Found) bool {
	block := s.Rule.Policy.Block
	if block == nil || s.MustNotBlock() {
		return false
	}
	return found == Denied || found == Blocked && block.Prolong && s.hasOwnBlock()
}

// hasOwnBlock reports whether the blocked key has a record. Else it is blocked by its page's floor (see package state),
// as are others: if it prolonged that, keys that were never denied would keep a page blocked for good. If its denials
// count, this one gives it a record, which has the block from then on.
func (s *Subject) hasOwnBlock() bool { return s.Record.HasRecord() }

// MustNotBlock reports whether no denial of the subject begins a block or prolongs it, because the rule is in shadow
// mode and the block would be one of a rule that enforces.
func (s *Subject) MustNotBlock() bool { return s.Shadow && s.Rule.blockIsEnforcedByOther }
