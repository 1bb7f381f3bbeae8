package limit

// A floor is what a bucket of records remembers of those it has removed, so
// that no key that starts from it gets more than a removed one had left. It is
// a Usage too, with other fields for two algorithms:
//
//	SlidingWindowLog  Used units at the newest instant EndNs
//	TokenBucket       full at EndNs, with a stamp, gaining Used tokens a period,
//	                  holding Prev

// Floor returns what u, written at last, leaves behind at now. w has the rule's
// own limits, the key that wrote u may have had others: a bucket is full when
// the later of the two says so.
func (w *Window) Floor(u Usage, last, now int64) Usage {
	if w.Algorithm == TokenBucket {
		return w.fullFrom(w.Expiry(&u, last), w.fullAt(&u, last), now)
	}
	w.Roll(&u, last, now)
	if u.IsZero() {
		return Usage{}
	}
	if w.Algorithm == SlidingWindowLog {
		used := uint32(len(u.Log))
		if u.Cut {
			used = 1<<32 - 1
		}
		return Usage{Used: used, EndNs: u.Log[len(u.Log)-1]}
	}
	u.Slides = false
	return u
}

// fullFrom is the floor, at now, of a TokenBucket that is full from that instant
// on, and by the limits of w alone from the instant own on. What lies between is
// no debt, but the time of other limits.
func (w *Window) fullFrom(full, own, now int64) Usage {
	if full <= now {
		return Usage{}
	}
	f := Usage{Used: w.Limit, Prev: w.Burst, EndNs: w.stamped(full)}
	if w.Stamp == 0 && w.Burst > 0 && full > own+stampMask {
		f.EndNs = withStamp(full, foreignStamp)
	}
	return f
}

// ByRule returns u, written at last by a key that may have limits of its own,
// as it stands at now when measured by the rule's, which w has.
func (w *Window) ByRule(u Usage, last, now int64) Usage {
	if w.Algorithm == TokenBucket {
		full := w.fullBy(&u, last)
		return w.Start(w.fullFrom(full, full, now), now, nil)
	}
	w.Roll(&u, last, now)
	return u
}

// RollFloor returns the floor f, written at last, as it stands at now.
func (w *Window) RollFloor(f Usage, last, now int64) Usage {
	switch w.Algorithm {
	case SlidingWindowLog:
		if f.EndNs <= now-w.PeriodNs {
			return Usage{}
		}
		return f
	case TokenBucket:
		switch {
		case w.Burst == 0 && w.Stamp == 0: // whoever asks does not know the bucket's size
		case w.Burst > 0 && (f.Used != w.Limit || f.Prev != w.Burst):
			f = w.refloor(f, last)
		case f.EndNs > last && w.stale(f.EndNs):
			f.EndNs = w.stamped(max(f.EndNs, after(last, w.FillNs)))
		}
		if f.EndNs <= now {
			return Usage{}
		}
		return f
	default:
		w.Roll(&f, last, now)
		return f
	}
}

// refloor returns the floor of a bucket, written at last under another rate or
// burst: nobody knows what was left, so it counts as empty at that time, or as
// deep in debt as it was. It must not count as empty whenever somebody looks:
// a key that starts from it would wait forever.
func (w *Window) refloor(f Usage, last int64) Usage {
	if f.EndNs <= last {
		return Usage{}
	}
	level := Tokens{}
	if stampOf(f.EndNs) == 0 { // with a stamp it may be the time of a slower key
		old := Window{PeriodNs: w.PeriodNs, Burst: f.Prev}
		if debt := old.full().sub(tokens(uint64(f.EndNs-last), int64(f.Used))); !debt.positive() {
			level = debt
		}
	}
	own := last
	if w.Limit > 0 {
		own = w.fullAt(&Usage{Tokens: level, EndNs: 1}, last)
	}
	full := own
	if f.Prev == 0 { // written by who did not know the rule, from what records say
		full = max(full, f.EndNs)
	}
	if w.Stamp != 0 {
		full = max(full, after(last, w.FillNs))
	}
	return w.fullFrom(full, own, last)
}

// MergeFloors returns the floor f after a record with the floor g was removed. Both
// must have been rolled to the same instant.
func (w *Window) MergeFloors(f, g Usage) Usage {
	switch {
	case w.Algorithm != TokenBucket:
	case w.Burst == 0 && !f.IsZero() && !g.IsZero(): // f's limits say nothing about g
		return Usage{EndNs: w.stamped(max(f.EndNs, g.EndNs))}
	case g.EndNs > f.EndNs:
		return g
	default:
		return f
	}
	return Usage{Used: max(f.Used, g.Used), Prev: max(f.Prev, g.Prev), EndNs: max(f.EndNs, g.EndNs)}
}

// Start returns the usage with which a key without a record is checked at now,
// given the floor f rolled to now. log is where a SlidingWindowLog's is put.
func (w *Window) Start(f Usage, now int64, log []int64) Usage {
	switch {
	case f.IsZero():
		return Usage{}
	case w.Algorithm == SlidingWindowLog:
		for range min(f.Used, uint32(w.Units)) {
			log = append(log, f.EndNs)
		}
		return Usage{Log: log}
	case w.Algorithm == TokenBucket:
		if w.Burst == 0 { // whoever asks does not know the bucket's size
			return Usage{EndNs: f.EndNs}
		}
		return w.holding(w.full().sub(tokens(uint64(f.EndNs-now), int64(w.Limit))), now)
	}
	return f
}

// Inherit returns the usage from which such a key counts on, given what it was
// checked with. A window whose true opening is not known slides; a jittered one
// is the key's own.
func (w *Window) Inherit(u Usage, now int64) Usage {
	switch {
	case u.IsZero():
	case w.Algorithm == FixedWindowPerKey:
		return Usage{Used: u.Used, EndNs: now + w.PeriodNs, Slides: true}
	case w.Algorithm == FixedWindow && w.Jitter > 0:
		u.EndNs = w.End(now)
	}
	return u
}
