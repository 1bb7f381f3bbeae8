package limit

const (
	// HoldParts is how many parts a hold's length has. A unit whose stream gives no sign of
	// life lapses after 8 to 9 of them.
	HoldParts = 8
	// MinHoldNs is the shortest hold: running requests show a sign of life each eighth.
	MinHoldNs int64 = 10_000_000_000
	// MaxHoldNs is the longest, a day. What runs renews its hold, so a longer one would only
	// make a key wait for more than a day after a crash.
	MaxHoldNs int64 = 86_400_000_000_000
	// HeldRetryNs is the wait of a hit that only units held by others leave no room.
	HeldRetryNs int64 = 1_000_000_000
)

// Holds is how many units running requests hold, by the eighth of the hold's length in
// which each request was last known to run. Its clock is the caller's, and is at least nine eighths after its start.
type Holds struct {
	Eighth uint32                // the newest that counts
	Units  [HoldParts + 1]uint32 // of the eighth n at n modulo 9
}

// EighthNs is how long an eighth of w's hold is.
func (w *Window) EighthNs() int64 { return (w.PeriodNs + HoldParts - 1) / HoldParts }

// Total is how many units are held.
func (h *Holds) Total() (units uint32) {
	for _, n := range h.Units {
		units = AddSaturating(units, n)
	}
	return units
}

// Newest is the newest eighth that holds a unit; ok is false if none does.
func (h *Holds) Newest() (eighth uint32, ok bool) {
	for n := range uint32(len(h.Units)) {
		eighth = h.Eighth - n
		if h.Units[placeOf(eighth)] > 0 {
			return eighth, true
		}
	}
	return 0, false
}

// Lapse removes the units of the oldest eighth that is over for good at the eighth to, and
// returns them. Call it until ok is false; h is at the eighth to then.
func (h *Holds) Lapse(to uint32) (eighth, units uint32, ok bool) {
	for ; int32(to-h.Eighth) > 0; h.Eighth++ {
		oldest := placeOf(h.Eighth + 1) // what is held there is nine eighths old
		if units := h.Units[oldest]; units > 0 {
			h.Units[oldest] = 0
			return h.Eighth + 1 - uint32(len(h.Units)), units, true
		}
		if h.isEmpty() {
			h.Eighth = to - 1
		}
	}
	return 0, 0, false
}

// AdvanceTo moves h on to the eighth to, unless h is there. Lapse must have removed what lapses by then.
func (h *Holds) AdvanceTo(to uint32) {
	if int32(to-h.Eighth) > 0 {
		h.Eighth = to
	}
}

func (h *Holds) isEmpty() bool { return h.Units == [HoldParts + 1]uint32{} }

// placeOf is where in Units what is held of an eighth is. It returns no pointer into them, or TinyGo would allocate
// each Holds.
func placeOf(eighth uint32) uint32 { return eighth % (HoldParts + 1) }

// has reports whether units of that eighth are among h's, and have not lapsed.
func (h *Holds) has(eighth uint32) bool { return h.Eighth-eighth < uint32(len(h.Units)) }

// orOldest is the eighth, or h's oldest if it is too old to be among h's.
func (h *Holds) orOldest(eighth uint32) uint32 {
	if h.has(eighth) {
		return eighth
	}
	return h.Eighth - HoldParts
}

// Add holds units from the eighth on, which must be among h's.
func (h *Holds) Add(eighth, units uint32) {
	at := placeOf(eighth)
	h.Units[at] = AddSaturating(h.Units[at], units)
}

// Remove ends the hold of units that were last known to run in the eighth and have not
// lapsed. If the hold's length has changed since, they may lie in a later one, behind units
// of others: then those are removed instead, and what is left is no older.
func (h *Holds) Remove(eighth, units uint32) {
	for eighth = h.orOldest(eighth); units > 0 && h.has(eighth); eighth++ {
		at := placeOf(eighth)
		taken := min(h.Units[at], units)
		h.Units[at] -= taken
		units -= taken
	}
}

// Join adds what g holds. Eighths of g that are too old for h are added to h's oldest.
func (h *Holds) Join(g *Holds) {
	for n := range uint32(len(g.Units)) {
		h.Add(h.orOldest(g.Eighth-n), g.Units[placeOf(g.Eighth-n)])
	}
}

// EighthBy is the eighth of w's hold that ends at the instant, by the holds' clock, or after
// it. A unit of an eighth is known to run until that eighth's end, so this is where it lies
// if the hold's length changes.
func (w *Window) EighthBy(ns int64) uint32 {
	each := w.EighthNs()
	return uint32((ns+each-1)/each - 1)
}

// Scale moves what w holds to v, whose hold is of another length. If that is much shorter,
// the oldest eighths become one.
func (h *Holds) Scale(w, v *Window) {
	from, old := w.EighthNs(), *h
	switch {
	case from == v.EighthNs():
		return
	case old.isEmpty():
		*h = Holds{}
		return
	}
	*h = Holds{Eighth: v.EighthBy((int64(old.Eighth) + 1) * from)}
	for n := range uint32(len(h.Units)) {
		eighth := v.EighthBy((int64(old.Eighth-n) + 1) * from)
		h.Add(h.orOldest(eighth), old.Units[placeOf(old.Eighth-n)])
	}
}
