package quota

import (
	"errors"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// The store's side of units that are held: the Holders of a key. account.go draws both sides.

const (
	// MaxHolders is how many workers may hold units of one key.
	MaxHolders = 256
	// emptyNs is how long a holder of nothing is remembered at most, so that no late
	// report counts twice.
	emptyNs = 60 * second
)

var (
	// ErrHolders says that one worker more would hold units of the key than may.
	ErrHolders = errors.New("256 workers hold units of this key: another one may once one of them holds none")
	// ErrStale says that a report is no newer than the last one noted.
	ErrStale = errors.New("a newer report of the worker is noted already")
)

// Holder is what the store keeps of a worker's last report of a key.
type Holder struct {
	Worker  uint64
	Since   uint64
	Number  uint64
	Charged uint64
	Held    uint32 // with what the report was granted
	NotedNs int64  // when the report was noted
	HoldNs  int64  // for how long a silent worker holds its units
}

// endNs is when the holder goes: what it holds is charged then.
func (h *Holder) endNs() int64 {
	if h.Held == 0 {
		return h.NotedNs + min(h.HoldNs, emptyNs)
	}
	return h.NotedNs + h.HoldNs
}

// Holders are the workers that hold units of a key. nil means that nobody holds any: it can be asked what is
// held, but to take a report or a refund there must be Holders.
type Holders struct {
	List []Holder
	// Starting says that the store has no state yet: workers report what they hold, and
	// nothing is granted.
	Starting bool
}

// Held is how many units are held.
func (hs *Holders) Held() (units uint32) {
	if hs == nil {
		return 0
	}
	for i := range hs.List {
		units = limit.AddSaturating(units, hs.List[i].Held)
	}
	return units
}

func (hs *Holders) find(worker uint64) *Holder {
	for i := range hs.List {
		if hs.List[i].Worker == worker {
			return &hs.List[i]
		}
	}
	return nil
}

// first is the index of the holder that ends first, -1 if there is none.
func (hs *Holders) first() int {
	first := -1
	for i := range hs.List {
		if first < 0 || hs.List[i].endNs() < hs.List[first].endNs() {
			first = i
		}
	}
	return first
}

func (hs *Holders) drop(i int) { hs.List = append(hs.List[:i], hs.List[i+1:]...) }

// findOrAdd returns the worker's holder, a new one if it has none.
func (hs *Holders) findOrAdd(worker uint64) (*Holder, error) {
	if h := hs.find(worker); h != nil {
		return h, nil
	}
	if len(hs.List) >= MaxHolders && !hs.dropEmpty() {
		return nil, ErrHolders
	}
	hs.List = append(hs.List, Holder{Worker: worker})
	return &hs.List[len(hs.List)-1], nil
}

// dropEmpty drops the oldest holder of nothing, and reports whether there was one.
func (hs *Holders) dropEmpty() bool {
	oldest := -1
	for i := range hs.List {
		h := &hs.List[i]
		if h.Held == 0 && (oldest < 0 || h.NotedNs < hs.List[oldest].NotedNs) {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	hs.drop(oldest)
	return true
}

// expiryNs is from when the holders need not be kept.
func (hs *Holders) expiryNs() (expiry int64) {
	if hs == nil {
		return 0
	}
	for i := range hs.List {
		expiry = max(expiry, hs.List[i].endNs())
	}
	return expiry
}

// shift moves the instants of the holders, because the clock was set back.
func (hs *Holders) shift(delta int64) {
	if hs == nil {
		return
	}
	for i := range hs.List {
		hs.List[i].NotedNs += delta
	}
}

// Refund takes back units that a report was granted, and reports whether it did. It does nothing
// if the worker has reported anew since: that report says what the worker holds.
func (hs *Holders) Refund(granted *Report, units uint32) bool {
	h := hs.find(granted.Worker)
	if h == nil || h.Number != granted.Number {
		return false
	}
	h.Held -= min(units, h.Held)
	return true
}

// Noting is what came of a part with a report.
type Noting struct {
	Noted bool   // the report is noted
	OK    bool   // the part's cost is held, or it asks for nothing and the key is not blocked
	Units uint32 // what is held from now on beside what the report says
}

// Note notes the report of a part: it charges what the report has charged and the store has not
// counted yet. If the part asks for units, it holds them if all windows and the hold have room
// for them. A report that says nothing and is denied is not noted, so that a denied worker needs no
// holder.
func (s *State) Note(p *Part) (n Noting, err error) {
	h := s.Holders.find(p.Worker)
	if h != nil && p.Number <= h.Number {
		return n, ErrStale
	}
	held := min(p.Held, s.mostHeld(h))
	uncounted := p.uncounted(h)
	// Such a report may be forgotten: the worker's next one says all that the store must know.
	saysNothing := h == nil && held == 0 && uncounted == 0 && p.isFirst()
	if saysNothing && p.Cost > 0 && !s.HasRoom(p.Cost) {
		return n, nil
	}
	h, err = s.Holders.findOrAdd(p.Worker)
	if err != nil {
		return n, err
	}
	*h = Holder{
		Worker: p.Worker, Since: p.Since, Number: p.Number, Charged: p.Charged,
		Held: held, NotedNs: s.NowNs, HoldNs: s.HoldLimit.PeriodNs,
	}
	if uncounted > 0 { // only what is charged opens a window
		for i := range s.Windows {
			s.charge(i, uint32(min(uncounted, saturated)))
		}
	}
	n.Noted = true
	n.Units, n.OK = s.room(p) // after the charge, and beside what h holds
	h.Held = limit.AddSaturating(held, n.Units)
	return n, nil
}

// uncounted is what the report has charged and the store has not counted. h is what the store has
// of the worker, nil if it has nothing. Without it, or if the worker sums up anew since, the
// worker's own word says what was counted.
func (r *Report) uncounted(h *Holder) uint64 {
	counted := r.Known
	if h != nil && h.Since == r.Since {
		counted = h.Charged
	}
	return r.Charged - min(counted, r.Charged)
}

// isFirst reports whether no earlier report of the worker can be under way. If one can be, this
// report is noted even if it holds nothing, so that the earlier one is stale when it arrives.
func (r *Report) isFirst() bool { return r.Since == r.Number }

// mostHeld is how many units the store believes one worker to hold: as many as all workers may
// hold together. So if the worker falls silent, at most one whole limit is charged. It may go on to
// hold what its holder h has, because requests of one key may have several limits.
func (s *State) mostHeld(h *Holder) uint32 {
	most := uint32(saturated)
	if !s.HoldLimit.Unlimited {
		most = s.HoldLimit.Limit
	}
	for i := range s.Windows {
		if w := &s.Windows[i]; !w.Unlimited && w.Algorithm != limit.Block {
			most = min(most, w.Max())
		}
	}
	if h != nil {
		most = max(most, h.Held)
	}
	return most
}

// room is how many units the part may hold: see leftToHold. ok says that its cost fits.
func (s *State) room(p *Part) (units uint32, ok bool) {
	left := s.leftToHold()
	switch {
	case p.Cost == 0:
		return 0, !s.Blocked()
	case left < p.Cost || s.Holders.Starting:
		return 0, false
	}
	return min(left, max(p.Waiting, p.Cost)), true
}

// leftToHold is how many units are left beside what all workers hold: see "What is left" in
// decide.go.
func (s *State) leftToHold() uint32 {
	left := s.Left(Unleased)
	if !s.HoldLimit.Unlimited {
		left = min(left, s.HoldLimit.Limit)
	}
	return left - min(left, s.Holders.Held())
}

// HasRoom reports whether a cost would be held, or of a cost of 0 that the key is not blocked.
func (s *State) HasRoom(cost uint32) bool {
	_, ok := s.room(&Part{Cost: cost})
	return ok
}

// AwaitsStart reports whether nothing but the store's start keeps a cost from being held. If a
// worker's report asks for it, s has noted the report.
func (s *State) AwaitsStart(cost uint32) bool {
	return s.Holders.Starting && cost > 0 && s.leftToHold() >= cost
}

// HeldWaitNs is how long a cost must wait that was not held. heldBack says that the windows
// have room for the cost, and that only held units are in its way.
func (s *State) HeldWaitNs(cost uint32) (wait int64, heldBack bool) {
	if !s.HoldLimit.Unlimited && cost > s.HoldLimit.Limit {
		return limit.Never, false
	}
	wait = s.WaitNs(cost)
	if wait != 0 {
		return wait, false
	}
	return limit.HeldRetryNs, true
}

// chargeSilent ends the holders whose workers have been silent for too long at now. What each held
// is charged at the instant when its hold ended. The windows may be those of a record in the store,
// which have no limits.
func (s *State) chargeSilent(now int64) {
	for s.Holders != nil {
		i := s.Holders.first()
		if i < 0 || s.Holders.List[i].endNs() > now {
			return
		}
		ended := s.Holders.List[i]
		s.Holders.drop(i)
		s.rollWindows(max(ended.endNs(), s.NowNs))
		s.chargeHeld(ended.Held)
	}
}

// chargeHeld charges what a silent worker held. A log in the store does not say how many units it
// remembers, so here it remembers as many as any log can.
func (s *State) chargeHeld(units uint32) {
	if units == 0 {
		return
	}
	for i := range s.Windows {
		w := &s.Windows[i]
		if w.Algorithm == limit.SlidingWindowLog && w.Units < limit.MaxLog {
			longest := *w
			longest.Units = limit.MaxLog
			longest.Add(&s.Usages[i], max(s.SpendBy(i), s.NowNs), units)
			continue
		}
		s.charge(i, units)
	}
}
