package limit

// Floor is what one window has counted in all records that were evicted from a page: a key that
// starts from it gets no more than any of them had left. Its fields are those of a Usage, except
// in two algorithms:
//
//	SlidingWindowLog  Used units, all of them counted at EndNs
//	TokenBucket       a bucket of Prev tokens that gains Used a period and is
//	                  full at EndNs, with a stamp
//
// For example, at 12:00:00 a page evicts the records of alice, who has used 7 of 10 units, and of bob, who
// has used 4. Then carol comes, who has no record:
//
//	             alice's floor      bob's              both            carol starts with
//	FixedWindow  Used 7             Used 4             Used 7          3 units, until the window ends
//	TokenBucket  full at 12:00:07   full at 12:00:04   12:00:07        8 tokens at 12:00:05
//	of 10, 1 a second
type Floor struct {
	Used, Prev uint32
	EndNs      int64
}

// IsZero reports whether f has counted nothing.
func (f Floor) IsZero() bool { return f == Floor{} }

// floorOf is the floor of an algorithm whose floors have the fields of a Usage.
func floorOf(u *Usage) Floor { return Floor{u.Used, u.Prev, u.EndNs} }

// bucketLimit and bucketBurst are how many tokens the bucket of a floor gains in a period, and how many it holds when
// full. The burst is 0 if a configuration without the window wrote the floor.
func (f Floor) bucketLimit() uint32 { return f.Used }
func (f Floor) bucketBurst() uint32 { return f.Prev }

// usage is the usage by such a floor.
func (f Floor) usage() Usage { return Usage{Used: f.Used, Prev: f.Prev, EndNs: f.EndNs} }

// Floor returns the floor, at now, of a record that holds u and was written at
// last. w has the rule's limits. The key may have had others, so a bucket is
// full at the later of the two times.
func (w *Window) Floor(u Usage, last, now int64) Floor {
	if w.Algorithm == TokenBucket {
		return w.tokenFloor(w.Expiry(&u, last), w.fullAt(&u, last), now)
	}
	w.Roll(&u, last, now)
	if u.IsZero() {
		return Floor{}
	}
	if w.Algorithm == SlidingWindowLog {
		used := uint32(len(u.Log))
		if u.Cut {
			used = 1<<32 - 1
		}
		return Floor{Used: used, EndNs: u.Log[len(u.Log)-1]}
	}
	return floorOf(&u)
}

// tokenFloor is the floor, at now, of a TokenBucket that is full at the instant
// full. By w's limits alone it would be full at the instant own. If full is later, it comes
// from other limits: foreignStamp says then that the time between the two is no debt.
func (w *Window) tokenFloor(full, own, now int64) Floor {
	if full <= now {
		return Floor{}
	}
	f := Floor{Used: w.Limit, Prev: w.Burst, EndNs: w.stamped(full)}
	if w.Stamp == 0 && w.knowsSize() && full > own+stampMask {
		f.EndNs = withStamp(full, foreignStamp)
	}
	return f
}

// ByRule returns the usage, at now, of a record that holds u and was written at
// last, measured by the rule's limits, which are w's. The key that wrote it may
// have limits of its own.
func (w *Window) ByRule(u Usage, last, now int64) Usage {
	if w.Algorithm == TokenBucket {
		full := w.latestFull(&u, last)
		return w.Start(w.tokenFloor(full, full, now), now, nil)
	}
	w.Roll(&u, last, now)
	return u
}

// RollFloor returns the floor f, written at last, as it stands at now.
func (w *Window) RollFloor(f Floor, last, now int64) Floor {
	switch w.Algorithm {
	case SlidingWindowLog:
		if f.EndNs <= now-w.PeriodNs {
			return Floor{}
		}
		return f
	case TokenBucket:
		switch {
		case !w.knowsSize() && w.Stamp == 0: // nothing to convert it by
		case w.knowsSize() && (f.bucketLimit() != w.Limit || f.bucketBurst() != w.Burst):
			f = w.convertFloor(f, last)
		case f.EndNs > last && w.stale(f.EndNs):
			f.EndNs = w.stamped(max(f.EndNs, after(last, w.FillNs)))
		}
		if f.EndNs <= now {
			return Floor{}
		}
		return f
	default:
		u := f.usage()
		w.Roll(&u, last, now)
		return floorOf(&u)
	}
}

// SetFloorBack is SetBack of a floor. A jittered window's covers keys with other grids.
func (w *Window) SetFloorBack(f Floor, last, now int64) Floor {
	u := f.usage()
	w.SetBack(&u, last, now)
	if w.Jitter > 0 && u.EndNs != 0 {
		u.EndNs = now + w.PeriodNs
	}
	return floorOf(&u)
}

// convertFloor converts a bucket's floor, written at last under another rate or
// burst. What was left is not known, so the bucket counts as empty at last, or as
// deep in debt as it was. It must not count as empty at now: each later call would
// find it empty again, and a key that starts from it would wait forever.
//
// For example, w holds 20 tokens and gains 2 a second. f was written at 12:00:00 by a bucket that
// held 10 and gained 1 a second:
//
//	f is full at   f had         w has     w is full at
//	12:00:06       4 tokens      none      12:00:10, 20 tokens later
//	12:00:15       a debt of 5   the debt  12:00:12.5, 25 tokens later
//
// At 12:00:04 a key that starts from the first has 8 tokens.
func (w *Window) convertFloor(f Floor, last int64) Floor {
	if f.EndNs <= last {
		return Floor{}
	}
	own := last
	if w.Limit > 0 {
		own = w.fullAt(&Usage{Tokens: w.debtOf(f, last), EndNs: notFull}, last)
	}
	full := own
	fromRecords := f.bucketBurst() == 0 // a configuration without this window wrote it, from the records' own times
	if fromRecords && !w.isOnlyBound(f.EndNs, last) {
		full = max(full, f.EndNs)
	}
	if w.Stamp != 0 {
		full = max(full, after(last, w.FillNs))
	}
	return w.tokenFloor(full, own, last)
}

// debtOf is the debt, 0 or less, of a bucket's floor that another rate or burst wrote at last. It is
// not known of a floor with a stamp, which may come from a key with a slower bucket.
func (w *Window) debtOf(f Floor, last int64) Tokens {
	if stampOf(f.EndNs) != 0 {
		return Tokens{}
	}
	old := Window{PeriodNs: w.PeriodNs, Burst: f.bucketBurst()}
	level := old.full().sub(tokens(uint64(f.EndNs-last), int64(f.bucketLimit())))
	if level.positive() {
		return Tokens{}
	}
	return level
}

// MergeFloors returns a floor that covers both f and g, which must have been
// rolled to the same instant.
func (w *Window) MergeFloors(f, g Floor) Floor {
	switch {
	case w.Algorithm != TokenBucket:
		return Floor{Used: max(f.Used, g.Used), Prev: max(f.Prev, g.Prev), EndNs: max(f.EndNs, g.EndNs)}
	case !w.knowsSize() && !f.IsZero() && !g.IsZero(): // f's limits need not be g's
		return Floor{EndNs: w.stamped(max(f.EndNs, g.EndNs))}
	case g.EndNs > f.EndNs:
		return g
	}
	return f
}

// Start returns the usage by which a key without a record is checked at now: it
// starts from the floor f, rolled to now. The units of a SlidingWindowLog are appended
// to log.
func (w *Window) Start(f Floor, now int64, log []int64) Usage {
	switch {
	case f.IsZero():
		return Usage{}
	case w.Algorithm == SlidingWindowLog:
		for range min(f.Used, uint32(w.Units)) {
			log = append(log, f.EndNs)
		}
		return Usage{Log: log, Cut: f.Used > uint32(w.Units)}
	case w.Algorithm == TokenBucket:
		if !w.knowsSize() {
			return Usage{EndNs: f.EndNs}
		}
		return w.withLevel(w.full().sub(tokens(uint64(f.EndNs-now), int64(w.Limit))), now)
	}
	return f.usage()
}

// Inherit returns the usage that a key's new record begins with, given the u that
// Start returned. The opening of a floor's FixedWindowPerKey is not known, so the
// window slides; a jittered window ends on the key's own grid.
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

// ChargeFloor returns the floor f, rolled to now, after units more were counted at now for
// one of its keys. w has the rule's limits. key is the key's window, or w itself if the key is not
// known. The floor does not know when the key's window opened, so the window may last a whole
// period from now. The bucket of an unknown key may be the slowest one of the rule.
func (w *Window) ChargeFloor(key *Window, f Floor, now int64, units uint32, log []int64) Floor {
	u := key.Start(f, now, log)
	key.Add(&u, now, units)
	if u.EndNs != 0 && w.Algorithm != TokenBucket && w.Algorithm != Block {
		u.EndNs = max(u.EndNs, now+w.PeriodNs)
	}
	g := w.MergeFloors(f, w.Floor(u, now, now))
	if key == w && w.FillNs > 0 {
		g.EndNs = max(g.EndNs, w.stamped(after(max(f.EndNs, now), w.FillNs)))
	}
	return g
}

// ChargeByRule counts units at the instant at in u, written at last, of a key whose own limits and
// grid are not known: w has the rule's. After it, a bucket has only a bound for when it is full:
// use Expiry and Floor of it, not Check or Count.
func (w *Window) ChargeByRule(u *Usage, last, at int64, units uint32) {
	if w.Algorithm != TokenBucket {
		w.Roll(u, last, at)
		w.Add(u, at, units)
		if w.Algorithm == FixedWindowPerKey || w.Algorithm == FixedWindow && w.Jitter > 0 {
			// The key may have opened its window only now, because what else was charged may be
			// another key's. With the latest end that is possible it is no looser.
			u.EndNs = at + w.PeriodNs
		}
		return
	}
	fill := maxWait // w never fills it, or does not know its size
	switch {
	case units == 0:
		return
	case w.Limit > 0 && w.knowsSize():
		fill = max(tokens(uint64(units), w.PeriodNs).ceilDiv(uint64(w.Limit)), w.FillNs)
	}
	u.EndNs = w.stamped(after(max(w.Expiry(u, last), at), fill))
}
