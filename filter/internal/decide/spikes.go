package decide

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// spikes watches for bursts around the boundary of a rule's shortest aligned
// window: hits in its first tenth that, with those in the last tenth of the
// window before, exceed the limit. It adds up all keys that one worker has seen,
// so it is exact for a rule without a key on one worker and an approximation
// otherwise. No record holds any of it.
type spikes struct {
	end        int64  // of the window that holds the counts below
	head, tail uint64 // units in its first and last tenth
	before     uint64 // units in the last tenth of the window before

	quietFrom, quietTo int64 // between these instants a hit changes nothing here
}

// count adds a hit that was counted.
func (s *spikes) count(of *Subject) {
	if at := of.Record.Now; at < s.quietFrom || at >= s.quietTo {
		s.countNearBoundary(of)
	}
}

func (s *spikes) countNearBoundary(of *Subject) {
	windows := of.Rule.Subjects.Windows
	for i := range windows {
		if w := &windows[i]; w.Algorithm == limit.FixedWindow || w.Algorithm == limit.Calendar {
			s.add(w, of.Record.Now, uint64(of.Cost), &of.Rule.Metrics)
			return
		}
	}
	s.quietFrom, s.quietTo = math.MinInt64, math.MaxInt64
}

func (s *spikes) add(w *limit.Window, now int64, units uint64, m *Metrics) {
	start, end := w.Span(now)
	length := end - start
	if end != s.end {
		before := uint64(0)
		if start == s.end {
			before = s.tail
		}
		*s = spikes{
			end: end, before: before,
			quietFrom: start + (length+9)/10, quietTo: end - length/10,
		}
	}
	if now-start < length/10 {
		limit := uint64(w.Limit)
		already := max(s.before+s.head, limit)
		s.head += units
		if s.before > 0 {
			m.BoundarySpikes += max(s.before+s.head, limit) - already
		}
	}
	if end-now <= length/10 {
		s.tail += units
	}
}
