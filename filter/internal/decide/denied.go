package decide

import "github.com/sluice-ratelimit/sluice/shared/state"

// A rule may keep something of a hit that it has denied by its limits: its cost, a block of its key, or both. What is
// kept, by what the rule has:
//
//	the rule has    its cost, if CountsDeniedHere  a block, if Subject.BeginsBlock
//	neither         -                              -
//	count_denied    of scope proxy only            -
//	block           -                              by this proxy
//	both            of scope proxy only            by this proxy
//
// What the quota service has denied, it has kept: this proxy keeps nothing of that. What OwnShare has denied, the
// proxy keeps. Who calls whom:
//
//	storeUntaken       endDenied calls it of each enforced subject, takeShadow of each shadow subject that denies
//	  keepDenied       Source.KeepDenied, again if another worker wrote first
//	    recheckDenied  Source.Recheck before that
//	  or Persist       Source.Persist, if keepDenied has kept nothing

// storeUntaken stores what the rule keeps of a hit that is not taken: its cost if denied hits count,
// a block that it begins, else that the record has moved to the present.
func (s *Subject) storeUntaken(now int64) {
	if kept := s.keepDenied(now); !kept && s.Known {
		s.Rule.Source.Persist(s)
	}
}

// mustKeepDenied reports whether a hit that the rule has denied by its limits must be counted, or begins
// a block or prolongs it. What the quota service denies, it has kept.
func (s *Subject) mustKeepDenied() bool {
	byLimits := s.Outcome == Denied || s.Outcome == Blocked
	return byLimits && !s.isByService() && s.Cost > 0 && (s.Rule.CountsDeniedHere || s.BeginsBlock())
}

// keepDenied counts a hit that the rule has denied by its limits, begins a block by it or prolongs that, or
// does both: see mustKeepDenied. The wait then is the one from the new record. If that cannot be stored,
// nothing is kept: the hit was denied.
func (s *Subject) keepDenied(now int64) (kept bool) {
	r := s.Rule
	for range state.MaxRetries {
		if !s.mustKeepDenied() {
			return false
		}
		switch outcome := r.Source.KeepDenied(s); {
		case outcome == Taken:
			return true
		case outcome == Full: // a newcomer without a slot, and still denied
			r.Metrics.Full++
			return false
		case outcome == Raced && s.recheckDenied(now): // another worker wrote first: it is tried again
		default: // it cannot be written, or cannot be read again
			r.Metrics.Errors++
			s.Known = false
			return false
		}
	}
	r.Metrics.Contention++
	s.Known = false
	return false
}

// recheckDenied reads the key again, because another worker wrote first. It returns false if the key cannot be
// read. The denial stays, and its wait, unless the key is blocked by now. But only what is found now begins a
// block. For example, after a denial with a wait of 40 s:
//
//	found now  the other worker     the wait         BeginsBlock
//	Denied     took units           40 s             yes
//	Blocked    has begun the block  until its end    no, unless the rule prolongs blocks
//	HasRoom    refunded units       40 s             no
func (s *Subject) recheckDenied(now int64) (ok bool) {
	passNs := s.PassNs
	s.lastFound = s.Rule.Source.Recheck(s, now)
	if s.lastFound == Failed {
		return false
	}
	if s.lastFound != Blocked {
		s.PassNs = passNs
	}
	s.Rule.Metrics.CASRetries++
	return true
}

// BeginsBlock reports whether the hit, which the rule has denied, begins a block of its key or prolongs
// it. It does not if another worker has made room since, or has begun the block. A rule in shadow mode
// blocks no key for a rule that enforces.
//
// A key without a record is blocked by the page's floor, which blocks others too: if it prolonged that,
// keys that were never denied would keep a page blocked for good.
func (s *Subject) BeginsBlock() bool {
	block := s.Rule.Policy.Block
	if block == nil || s.BlocksNobody() {
		return false
	}
	prolongs := block.Prolong && (s.Rule.CountsDeniedHere || s.Record.HasRecord())
	return s.lastFound == Denied || s.lastFound == Blocked && prolongs
}

// BlocksNobody reports whether no denial of the subject begins a block or prolongs it, because the rule is in shadow
// mode and the block would be one of a rule that enforces.
func (s *Subject) BlocksNobody() bool { return s.Shadow && s.Rule.blocksOthers }
