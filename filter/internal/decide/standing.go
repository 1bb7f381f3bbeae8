package decide

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// OverrideName returns the name of the override that holds, empty if none does or
// it has no name.
func (s *Subject) OverrideName() string {
	if s.Override < 0 {
		return ""
	}
	return s.Rule.Policy.Overrides[s.Override].Name
}

// Now returns the instant at which the key is counted, by the wall clock: the request's, or that
// of the key's record if that is later.
func (s *Subject) Now() int64 { return s.Record.Now }

// BlockedNs is what is left of the key's block at now, 0 if it is not blocked.
func (s *Subject) BlockedNs(now int64) int64 {
	if s.Rule.Policy.Block == nil || !s.Known {
		return 0
	}
	for i := len(s.Limits.Windows) - 1; i >= 0; i-- {
		if s.Limits.Windows[i].Algorithm == limit.Block {
			return max(0, s.Rule.Source.Usage(s, i).EndNs-now)
		}
	}
	return 0
}

// Standing is how the key of a subject stands. Only a subject whose usage is Known has one.
type Standing struct{ *Subject }

// Standing returns how the key stands, if that is known.
func (s *Subject) Standing() (_ Standing, known bool) { return Standing{s}, s.Known }

// Window returns the rule's limit i as it holds for the key, and its usage.
func (s Standing) Window(i int) (*limit.Window, *limit.Usage) {
	at := s.Rule.Finder.Order[i]
	return &s.Limits.Windows[at], s.Rule.Source.Usage(s.Subject, at)
}

// Held is how many units of the key are held, 0 for a rule that holds none.
func (s Standing) Held() uint32 {
	if !s.Rule.Policy.Holds() {
		return 0
	}
	return s.Rule.holdSource().Held(s.Subject)
}

// Remaining is how many units the rule's limit i has left for the key, beside what is held.
func (s Standing) Remaining(i int) uint32 {
	w, u := s.Window(i)
	return s.left(w, w.Count(u, s.Record.Now))
}

// left is Remaining of a window of which so many units are used.
func (s Standing) left(w *limit.Window, used uint32) uint32 {
	left := w.Left(used)
	if w.Algorithm != limit.Concurrency {
		left -= min(left, s.Held())
	}
	return left
}

// Usage is how the rule's limit i is used: how many units are used and how many are left beside what is held, and
// how long after now the window starts anew. If the quota service has said it, it is exactly that:
// Window has a usage made of it, which goes by this proxy's clock and may be a unit off.
func (s Standing) Usage(i int, now int64) (used, left uint32, resetNs int64) {
	w, u := s.Window(i)
	used, resetNs = w.Count(u, s.Now()), max(0, w.Reset(u, s.Now())-now)
	if !s.isByService() || w.Algorithm == limit.Concurrency {
		return used, s.left(w, used), resetNs
	}
	if st := &s.Quota.Standings[s.Rule.Finder.Order[i]]; st.ResetNs > s.Quota.NowNs {
		used, resetNs = st.Used, st.ResetNs-s.Quota.NowNs
	}
	return used, s.left(w, used), resetNs
}

// Tightest returns the index of the rule's limit with least units left.
func (s Standing) Tightest() int {
	best, lowest := 0, uint32(math.MaxUint32)
	limited := false
	for i := range s.Rule.Finder.Order {
		if w, _ := s.Window(i); w.Unlimited {
			continue
		}
		if left := s.Remaining(i); !limited || left < lowest {
			best, lowest = i, left
			limited = true
		}
	}
	return best
}
