package metrics

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// spikes finds bursts around the boundaries of a rule's shortest aligned window. A burst is what the
// last tenth of one window and the first tenth of the next have together beyond the limit. It adds
// up all keys that one worker has seen, so it is exact for a rule without a key on one worker and an
// approximation otherwise. No record holds any of it.
//
//	... window before | this window                         |
//	       tailBefore | head, to headEnd ... tailStart, tail |
type spikes struct {
	end int64 // of this window
	// Between these two a hit changes nothing here. Before the first hit both are 0. If the rule has no aligned window,
	// they have all time between them.
	headEnd, tailStart int64
	tailBefore         uint64 // units in the last tenth of the window before
	head, tail         uint64 // units in this window's first and last tenth
}

// CountSpikes counts by how much a hit that has taken units at now makes a spike larger. Of the rule's windows the
// shortest comes first.
func (m *Set) CountSpikes(windows []limit.Window, units uint32, now int64) {
	s := &m.spikes
	if now >= s.headEnd && now < s.tailStart {
		return
	}
	for i := range windows {
		if w := &windows[i]; w.Algorithm == limit.FixedWindow || w.Algorithm == limit.Calendar {
			m.BoundarySpikes += s.addUnits(w, now, uint64(units))
			return
		}
	}
	s.headEnd, s.tailStart = math.MinInt64, math.MaxInt64
}

// addUnits adds units to the window at now. It returns how many of them are beyond the limit.
func (s *spikes) addUnits(w *limit.Window, now int64, units uint64) (excess uint64) {
	if start, end := w.Span(now); end != s.end {
		s.begin(start, end)
	}
	switch {
	case now < s.headEnd:
		return s.addToHead(units, uint64(w.Limit))
	case now >= s.tailStart:
		s.tail += units
	}
	return 0
}

// begin begins a window. The one before it counts only if it ends where this one starts.
func (s *spikes) begin(start, end int64) {
	tailBefore := uint64(0)
	if start == s.end {
		tailBefore = s.tail
	}
	tenth := (end - start) / 10
	*s = spikes{end: end, headEnd: start + tenth, tailStart: end - tenth, tailBefore: tailBefore}
}

func (s *spikes) addToHead(units, allowed uint64) (excess uint64) {
	before := s.tailBefore + s.head
	s.head += units
	if s.tailBefore == 0 {
		return 0
	}
	return max(before+units, allowed) - max(before, allowed) // what before has beyond the limit was counted already
}
