package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// State is how a key stands at NowNs: its windows, what they have counted, and who holds
// units. What is decided about a key, lease.go and hold.go decide on it.
type State struct {
	NowNs   int64
	Windows []limit.Window // as they hold for the key: see Shifted
	Usages  []limit.Usage
	// Stamps, by window, are for buckets: what a bucket has counted may be spent at any
	// time until its stamp, so its usage is as of then. nil = no window is a bucket.
	Stamps  []int64
	Holders *Holders // nil = the key holds nothing
}

// NewState returns a key that has counted nothing.
func NewState(now int64, windows []limit.Window) State {
	s := State{NowNs: now, Windows: windows, Usages: make([]limit.Usage, len(windows))}
	for i := range windows {
		if windows[i].Algorithm == limit.TokenBucket {
			s.SetStamp(i, now)
		}
	}
	return s
}

// SetStamp sets a bucket's stamp.
func (s *State) SetStamp(i int, stamp int64) {
	if s.Stamps == nil {
		s.Stamps = make([]int64, len(s.Windows))
	}
	s.Stamps[i] = stamp
}

// Some returns the windows from one to before another. It shares the memory of s.
func (s *State) Some(from, to int) State {
	some := State{NowNs: s.NowNs, Windows: s.Windows[from:to], Usages: s.Usages[from:to], Holders: s.Holders}
	if s.Stamps != nil {
		some.Stamps = s.Stamps[from:to]
	}
	return some
}

// Roll brings s to now, or leaves it as it is if it is later already. What silent workers hold
// until then is charged.
func (s *State) Roll(now int64) {
	s.chargeSilent(now)
	s.roll(now)
}

func (s *State) roll(now int64) {
	now = max(now, s.NowNs)
	for i := range s.Windows {
		last, to := s.asOf(i), now
		switch {
		case s.Windows[i].Algorithm == limit.TokenBucket:
			to = max(now, last)
			s.Stamps[i] = to
		case s.Windows[i].Pays > 0 && s.hasEnded(i, now):
			s.Usages[i].Used = s.owed(i).Used
		}
		s.Windows[i].Roll(&s.Usages[i], last, to)
	}
	s.NowNs = now
}

// SetBack moves s back to now, because the clock was set back.
func (s *State) SetBack(now int64) {
	for i := range s.Windows {
		s.Windows[i].SetBack(&s.Usages[i], s.NowNs, now)
	}
	for i := range s.Stamps {
		s.Stamps[i] += now - s.NowNs
	}
	s.Holders.shift(now - s.NowNs)
	s.NowNs = now
}

// ExpiryNs returns the instant from which s counts nothing.
func (s *State) ExpiryNs() int64 {
	expiry := max(s.NowNs, s.Holders.expiryNs())
	if s.Holders.Held() > 0 { // which is charged when it ends
		expiry += MostWaitNs(s.Windows)
	}
	for i := range s.Windows {
		expiry = max(expiry, s.Stamp(i), s.Windows[i].Expiry(s.owed(i), s.asOf(i)))
	}
	return expiry
}

// asOf is the instant of a window's usage.
func (s *State) asOf(i int) int64 {
	if s.Windows[i].Algorithm == limit.TokenBucket {
		return s.Stamps[i]
	}
	return s.NowNs
}

// Stamp is until when what a log or bucket has counted may be spent. In a log each unit has
// its own stamp, in order: the last one is meant.
func (s *State) Stamp(i int) int64 {
	if log := s.Usages[i].Log; len(log) > 0 {
		return max(s.NowNs, log[len(log)-1])
	}
	return s.asOf(i)
}

// Add counts units in all windows, whatever is left. A log or bucket counts them at the end of
// their lease. It returns what Refund needs.
func (s *State) Add(units uint32, t Terms) Counted {
	c := Counted{AtNs: s.NowNs, StampNs: max(s.NowNs, t.EndNs)}
	for i := range s.Windows {
		w, u := &s.Windows[i], &s.Usages[i]
		if !stamped(w) {
			isOpen := u.EndNs != 0
			w.Add(u, s.NowNs, units)
			if u.EndNs != 0 {
				c.noteEnd(i, len(s.Windows), u.EndNs, !isOpen && w.Algorithm == limit.FixedWindowPerKey)
			}
			continue
		}
		stamp := max(s.Stamp(i), c.StampNs)
		if w.Algorithm == limit.TokenBucket {
			w.Roll(u, s.Stamps[i], stamp)
			s.Stamps[i] = stamp
		}
		w.Add(u, stamp, units)
		if stamp != c.StampNs {
			c.noteEnd(i, len(s.Windows), stamp, false)
		}
	}
	return c
}

// hasEnded reports whether a fixed window that has counted something ends at now or before.
func (s *State) hasEnded(i int, now int64) bool {
	if end := s.Usages[i].EndNs; end != 0 {
		return end <= now
	}
	return s.Windows[i].End(s.NowNs) <= now
}

// owed is a fixed window's usage as it counts once the window has ended. Of what was charged
// beyond the limit it keeps at most what the window pays within the longest window of a policy,
// or one limit if that is more: a charge is a proxy's word, and locks a key for no longer.
// Until the window ends all counts, because others may have used it by larger limits.
func (s *State) owed(i int) *limit.Usage {
	w, u := &s.Windows[i], &s.Usages[i]
	most := uint64(w.Pays) * uint64(min(max(limit.MaxPeriodNs/w.PeriodNs, 2), saturated))
	if w.Pays == 0 || uint64(u.Used) <= most {
		return u
	}
	owed := *u
	owed.Used = uint32(most)
	return &owed
}

// saturated is where a count ends.
const saturated = 1<<32 - 1

// Counted says how units were counted, for their Refund.
type Counted struct {
	AtNs    int64 // when they were counted
	StampNs int64 // until when they may be spent
	// Ends are, by window, the end of a key's own window, or the stamp of a log or
	// bucket that is later than StampNs; nil = there are none.
	Ends   []int64
	Opened uint16 // windows that the units opened, a bit each
}

// noteEnd notes until when a window counts the units, and whether they opened it.
func (c *Counted) noteEnd(i, windows int, end int64, opened bool) {
	if c.Ends == nil {
		c.Ends = make([]int64, windows)
	}
	c.Ends[i] = end
	if opened {
		c.Opened |= 1 << i
	}
}

// Refund uncounts units in the windows that counted them, if these are still open. undo says
// that the request was never admitted, so a window that it opened closes again: see
// limit.Window.Refund. Refund reports whether no window counts the units any more. s must have
// been rolled, and must have had the same windows ever since they were counted.
func (s *State) Refund(c *Counted, units uint32, undo bool) bool {
	ok := true
	for i := range s.Windows {
		w, u := &s.Windows[i], &s.Usages[i]
		if u.Used == saturated || u.Prev == saturated { // it may have counted fewer: leave others' units
			ok = false
			continue
		}
		var after limit.Usage
		if c.Ends != nil {
			after.EndNs = c.Ends[i]
		}
		at := c.AtNs
		if stamped(w) {
			at = max(c.StampNs, after.EndNs)
		}
		opened := undo && c.Opened&(1<<i) != 0
		ok = w.Refund(u, &after, at, s.asOf(i), units, opened) && ok
	}
	return ok
}
