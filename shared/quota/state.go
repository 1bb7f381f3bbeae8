package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// State is how a key stands at NowNs: its windows, what they have counted, and who holds
// units. All of its methods answer for NowNs, and Roll moves it to a later instant. There are two kinds:
//
//	kind      Windows                        limits              may be asked
//	a record  of all who ask for the key,    those of buckets;   Roll, SetBack, ExpiryNs, SpendBy, SetSpendBy, Some
//	          as the policy has them         others may be 0
//	a view    of the definition that asks,   all                 everything: what is left, what is granted, how it
//	          shifted for the key: Shifted                       stands
//
// The service's store keeps records. For a part of an ask the service makes a view by Some: it shares the record's
// Usages, so what the view counts is in the record.
//
// Leased units may be spent at any time until their lease ends. A fixed window or a counter
// counts them at NowNs, because no lease outlives it. A log or a bucket forgets units one after the
// other, so it counts them at the end of their lease, which is after NowNs. So a window has two
// instants:
//
//	window                  asOf: instant of its usage   SpendBy: last end of a lease counted
//	fixed, calendar         NowNs                        NowNs
//	sliding window counter  NowNs                        NowNs
//	sliding window log      NowNs                        that of its newest unit, or NowNs
//	token bucket            bucketAsOfNs                 bucketAsOfNs
type State struct {
	NowNs        int64
	Windows      []limit.Window // of a record or of a view
	Usages       []limit.Usage  // by window
	bucketAsOfNs []int64        // by window, of the buckets; nil = no window is a bucket
	Holders      *Holders       // nil = nobody holds units of the key
	// HoldLimit is the limit.Concurrency of a view's definition: how many units may be held at once, and for how long
	// a silent worker holds its own. nil = the definition holds none, but others may hold units of the key.
	// Note, HasRoom, AwaitsStart and HeldWaitNs need both HoldLimit and Holders.
	HoldLimit *limit.Window
}

// NewState returns a key that has counted nothing.
func NewState(now int64, windows []limit.Window) State {
	s := State{NowNs: now, Windows: windows, Usages: make([]limit.Usage, len(windows))}
	for i := range windows {
		if windows[i].Algorithm == limit.TokenBucket {
			s.SetSpendBy(i, now)
		}
	}
	return s
}

// SetSpendBy sets the instant until which the units that a bucket has counted may be spent.
func (s *State) SetSpendBy(i int, spendBy int64) {
	if s.bucketAsOfNs == nil {
		s.bucketAsOfNs = make([]int64, len(s.Windows))
	}
	s.bucketAsOfNs[i] = spendBy
}

// Some returns s with only the windows [from, to). It shares the memory of s.
func (s *State) Some(from, to int) State {
	some := State{NowNs: s.NowNs, Windows: s.Windows[from:to], Usages: s.Usages[from:to],
		Holders: s.Holders, HoldLimit: s.HoldLimit}
	if s.bucketAsOfNs != nil {
		some.bucketAsOfNs = s.bucketAsOfNs[from:to]
	}
	return some
}

// Roll brings s to now, or leaves it as it is if it is later already. It charges what workers
// held that have been silent for too long.
func (s *State) Roll(now int64) {
	s.chargeSilent(now)
	s.rollWindows(now)
}

// rollWindows is Roll of the windows alone.
func (s *State) rollWindows(now int64) {
	now = max(now, s.NowNs)
	for i := range s.Windows {
		last, to := s.asOf(i), now
		switch {
		case s.Windows[i].Algorithm == limit.TokenBucket:
			to = max(now, last) // its usage may be as of a later instant already
			s.bucketAsOfNs[i] = to
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
	for i := range s.bucketAsOfNs {
		s.bucketAsOfNs[i] += now - s.NowNs
	}
	s.Holders.shift(now - s.NowNs)
	s.NowNs = now
}

// ExpiryNs returns an instant from which s counts nothing. If nothing is held, it is the first one.
func (s *State) ExpiryNs() int64 {
	held := s.Holders.Held()
	heldEnd := max(s.NowNs, s.Holders.expiryNs())
	expiry := heldEnd
	for i := range s.Windows {
		end := max(s.SpendBy(i), s.Windows[i].Expiry(s.owed(i), s.asOf(i)))
		if held > 0 { // it is charged when its hold ends, beside what counts then
			end = max(end, heldEnd) + chargedNs(&s.Windows[i], held)
		}
		expiry = max(expiry, end)
	}
	return expiry
}

// asOf is the instant of a window's usage: see State.
func (s *State) asOf(i int) int64 {
	if s.Windows[i].Algorithm == limit.TokenBucket {
		return s.bucketAsOfNs[i]
	}
	return s.NowNs
}

// SpendBy is the instant until which the units that a window has counted may be spent: see State.
// A log keeps this instant for each unit, in order: SpendBy is the last one.
func (s *State) SpendBy(i int) int64 {
	if log := s.Usages[i].Log; len(log) > 0 {
		return max(s.NowNs, log[len(log)-1])
	}
	return s.asOf(i)
}

// Add counts units in all windows, whatever is left. It returns what Refund needs.
func (s *State) Add(units uint32, t Terms) Counted {
	c := Counted{AtNs: s.NowNs, EndNs: max(s.NowNs, t.EndNs)}
	for i := range s.Windows {
		s.addIn(i, units, &c)
	}
	return c
}

// addIn counts units in one window, on the terms of c, and notes in c how. A block counts none.
func (s *State) addIn(i int, units uint32, c *Counted) {
	switch w := &s.Windows[i]; {
	case w.Algorithm == limit.Block:
	case forgetsByUnit(w):
		s.addAtEnd(i, units, c)
	default:
		s.addNow(i, units, c)
	}
}

// Blocked reports whether the key is blocked.
func (s *State) Blocked() bool {
	block := blockOf(s.Windows)
	return block >= 0 && s.Usages[block].EndNs != 0
}

// Deny counts a denied hit in the key's block, if there is one: see limit.Window.Deny. It reports whether
// the block has begun, or lasts longer.
func (s *State) Deny() (changed bool) {
	block := blockOf(s.Windows)
	if block < 0 {
		return false
	}
	u := &s.Usages[block]
	before := u.EndNs
	s.Windows[block].Deny(u, s.NowNs)
	return u.EndNs != before
}

// addNow counts units in a fixed window or a counter, at NowNs.
func (s *State) addNow(i int, units uint32, c *Counted) {
	w, u := &s.Windows[i], &s.Usages[i]
	isOpen := u.EndNs != 0
	w.Add(u, s.NowNs, units)
	if u.EndNs != 0 {
		c.noteEnd(i, len(s.Windows), u.EndNs, !isOpen && w.Algorithm == limit.FixedWindowPerKey)
	}
}

// addAtEnd counts units in a log or a bucket, at the end of their lease. If it has counted others
// that may be spent until later, it counts these then too: a usage's instants never go back.
func (s *State) addAtEnd(i int, units uint32, c *Counted) {
	w, u := &s.Windows[i], &s.Usages[i]
	spendBy := max(s.SpendBy(i), c.EndNs)
	if w.Algorithm == limit.TokenBucket {
		w.Roll(u, s.bucketAsOfNs[i], spendBy)
		s.bucketAsOfNs[i] = spendBy
	}
	w.Add(u, spendBy, units)
	if spendBy != c.EndNs {
		c.noteEnd(i, len(s.Windows), spendBy, false)
	}
}

// saturated is the highest count: a count that has reached it may stand for more.
const saturated = 1<<32 - 1

// Counted says how units were counted, for their Refund.
type Counted struct {
	AtNs  int64 // when they were counted
	EndNs int64 // until when they may be spent: Terms.EndNs, or AtNs if they are not leased
	// Ends say, by window, until when it counts them, where AtNs and EndNs do not say it: the end of a key's
	// own window, or the SpendBy of a log or bucket that is later than EndNs; nil = there are none.
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

// Refund takes units out of the windows that counted them, if these are still open. It reports whether no
// window counts the units any more. s must have the windows that it had when the units were counted.
func (s *State) Refund(c *Counted, units uint32) bool { return s.uncount(c, units, 0) }

// Undo is Refund of a request that was never admitted: a window that it opened closes again.
func (s *State) Undo(c *Counted, units uint32) bool { return s.uncount(c, units, c.Opened) }

// uncount is Refund. It closes windows that the units opened, a bit each: see limit.Window.Refund.
func (s *State) uncount(c *Counted, units uint32, closes uint16) bool {
	ok := true
	for i := range s.Windows {
		w, u := &s.Windows[i], &s.Usages[i]
		if u.Used == saturated || u.Prev == saturated { // it may have counted only some of them
			ok = false
			continue
		}
		var after limit.Usage
		if c.Ends != nil {
			after.EndNs = c.Ends[i]
		}
		at := c.AtNs
		if forgetsByUnit(w) {
			at = max(c.EndNs, after.EndNs)
		}
		ok = w.Refund(u, &after, at, s.asOf(i), units, closes&(1<<i) != 0) && ok
	}
	return ok
}
