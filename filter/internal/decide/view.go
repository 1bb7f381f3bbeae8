package decide

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// View is what can be told of a subject's key. Its limits have the numbers of the policy.
type View struct{ s *Subject }

// View returns the view of a subject, which has one if its usage is known.
func (s *Subject) View() (_ View, known bool) {
	if !s.finding.Known {
		return View{}, false
	}
	return ViewOf(s), true
}

// ViewOf is the view of a subject whose record its source has just read.
func ViewOf(s *Subject) View { return View{s} }

// Window returns the limit i as it holds for the key, and its usage.
func (v View) Window(i int) (*limit.Window, *limit.Usage) {
	column := v.column(i)
	return &v.s.CountedKey.Windows[column], v.s.Rule.Source.Usage(v.s, column)
}

// column is where records have the limit i.
func (v View) column(i int) int { return v.s.Rule.Finder.Order[i] }

// Held is how many units of the key are held, 0 for a rule that holds none.
func (v View) Held() uint32 {
	if !v.s.Rule.Policy.Holds() {
		return 0
	}
	return v.s.Rule.holdSource().Held(v.s)
}

// Remaining is how many units the limit i has left for the key, beside what is held. Headers and responses tell it.
func (v View) Remaining(i int) uint32 {
	w, u := v.Window(i)
	return v.left(w, w.Count(u, v.s.Record.Now))
}

// left is Remaining of a window of which so many units are used.
func (v View) left(w *limit.Window, used uint32) uint32 {
	left := w.Left(used)
	if w.Algorithm != limit.Concurrency {
		left -= min(left, v.Held())
	}
	return left
}

// Told is what reports, looks and operations tell of the limit i (respond.Windows): how many units are used, how many
// are left beside what is held, and how long after now the window starts anew. Where the quota service decides, it is
// exactly what the service has said. The usage that Window returns then goes by this proxy's clock, and may be a unit
// off.
func (v View) Told(i int, now int64) (used, left uint32, resetNs int64) {
	w, u := v.Window(i)
	used = w.Count(u, v.s.Record.Now)
	resetNs = max(0, w.Reset(u, v.s.Record.Now)-now)
	if q := &v.s.Cluster; !v.s.isCountedHere() && w.Algorithm != limit.Concurrency {
		// Each window has a standing, because the usage is known. What the service has said of a window is over when the
		// window is, and then Window has an empty usage.
		if said := &q.Standings[v.column(i)]; said.ResetNs > q.MonotonicNs {
			used, resetNs = said.Used, said.ResetNs-q.MonotonicNs
		}
	}
	return used, v.left(w, used), resetNs
}

// Tightest returns the number of the limit with least units left.
func (v View) Tightest() int {
	best, lowest := 0, uint32(math.MaxUint32)
	limited := false
	for i := range v.s.Rule.Finder.Order {
		if w, _ := v.Window(i); w.Unlimited {
			continue
		}
		if left := v.Remaining(i); !limited || left < lowest {
			best, lowest = i, left
			limited = true
		}
	}
	return best
}

// BlockedNs is what is left of the key's block at now, 0 if it is not blocked.
func (s *Subject) BlockedNs(now int64) int64 {
	if s.Rule.Policy.Block == nil || !s.finding.Known {
		return 0
	}
	for column := len(s.CountedKey.Windows) - 1; column >= 0; column-- {
		if s.CountedKey.Windows[column].Algorithm == limit.Block {
			return max(0, s.Rule.Source.Usage(s, column).EndNs-now)
		}
	}
	return 0
}
