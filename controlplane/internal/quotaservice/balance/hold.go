package balance

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// A View with a HoldLimit is asked for a Note: parts report what is held, and are granted units to hold. Any View is
// asked for Room, and for a Denial.

// Room says whether a cost fits now. If it does not, and the store is not starting, View.Denial says why.
type Room struct {
	OK         bool   // the cost fits; a cost of 0 fits unless the key is blocked
	Units      uint32 // if OK: how many there are for what waits
	NeedsAge   bool   // if OK: it would not fit while the store is starting, which does not know then what is held
	IsStarting bool   // if not OK: only the store's start is in the way
}

// Note notes the report of a part: it charges what the report has charged and the store has not counted yet. If the
// part asks for units, it holds the room.Units.
//
//	changed  err                     the report
//	true     nil                     is noted in its worker's holder
//	false    nil                     says nothing, and its part is denied: it is forgotten, and needs no holder
//	false    ErrStale or ErrHolders  is refused
func (v *View) Note(p *quota.Part) (changed bool, room Room, err error) {
	h := v.record.Holders.find(p.Worker)
	if h != nil && p.Number <= h.Number {
		return false, room, ErrStale
	}
	held := min(p.Held, v.mostHeld(h))
	charges := notYetCounted(&p.Report, h)
	saysNothing := h == nil && held == 0 && charges == 0 && isFirst(&p.Report)
	if saysNothing && p.Cost > 0 { // such a report leaves Room as it is: look before a holder is added
		room = v.Room(p.Cost, p.Waiting)
		if !room.OK { // the worker's next report says all that the store must know
			return false, room, nil
		}
	}
	h, err = v.record.Holders.findOrAdd(p.Worker)
	if err != nil {
		return false, Room{}, err
	}
	*h = Holder{
		Worker: p.Worker, Since: p.Since, Number: p.Number, Charged: p.Charged,
		Held: held, NotedNs: v.record.NowNs, HoldNs: v.HoldLimit.PeriodNs,
	}
	if charges > 0 { // only what is charged opens a window
		for i := range v.Windows {
			v.window(i).charge(uint32(min(charges, saturated)))
		}
	}
	room = v.Room(p.Cost, p.Waiting) // after the charge, and beside what h holds
	h.Held = limit.AddSaturating(held, room.Units)
	return true, room, nil
}

// notYetCounted is what a report has charged and the store has not counted. h is what the store has of the worker, nil
// if it has nothing. Without it, or if the worker's sums have begun anew since, its own word says what was counted.
func notYetCounted(r *quota.Report, h *Holder) uint64 {
	counted := r.Known
	if h != nil && h.Since == r.Since {
		counted = h.Charged
	}
	return r.Charged - min(counted, r.Charged)
}

// isFirst reports whether no earlier report of the worker can be under way. If one can be, this report is noted even
// if it holds nothing, so that the earlier one is stale when it arrives.
func isFirst(r *quota.Report) bool { return r.Since == r.Number }

// mostHeld is how many units the store believes one worker to hold: as many as all workers may hold together. So if
// the worker falls silent, at most one whole limit is charged. It may go on to hold what its holder h has, because
// requests of one key may have several limits. For example, 10 may be held at once of 6 a minute. A worker that
// reports 50 is believed to hold 6, or 8 if it holds 8 already by a larger limit.
func (v *View) mostHeld(h *Holder) uint32 {
	most := uint32(saturated)
	if !v.HoldLimit.Unlimited {
		most = v.HoldLimit.Limit
	}
	for i := range v.Windows {
		if w := &v.Windows[i]; !w.Unlimited && w.Algorithm != limit.Block {
			most = min(most, w.Max())
		}
	}
	if h != nil {
		most = max(most, h.Held)
	}
	return most
}

// Room finds out how many units there are beside what all workers hold, if so many wait, of which the first request
// costs so many. They are to be held, or to be spent at once.
func (v *View) Room(cost, waiting uint32) Room {
	if cost == 0 {
		return Room{OK: !v.IsBlocked()}
	}
	left, holds := v.LeftBesideHeld(), v.HoldLimit != nil
	if holds && !v.HoldLimit.Unlimited {
		left = min(left, minus(v.HoldLimit.Limit, v.Held()))
	}
	switch {
	case cost > left:
		return Room{}
	case holds && v.StartingForNs > 0:
		return Room{IsStarting: true}
	}
	return Room{OK: true, Units: min(left, max(waiting, cost)), NeedsAge: holds}
}

// Denial is why a cost is denied.
type Denial struct {
	HeldBack bool  // only units that are held are in the way; false if the definition holds none
	WaitNs   int64 // until the cost fits, if nobody else asks; limit.Never
}

// Denial says why a cost that is denied does not fit, by what the record counts now.
func (v *View) Denial(cost uint32) Denial {
	holds := v.HoldLimit != nil
	if holds && !v.HoldLimit.Unlimited && cost > v.HoldLimit.Limit {
		return Denial{WaitNs: limit.Never}
	}
	waitNs := v.WaitNs(cost)
	if waitNs == 0 { // only what is held leaves no room, maybe by workers of another policy
		return Denial{HeldBack: holds, WaitNs: limit.HeldRetryNs}
	}
	return Denial{WaitNs: waitNs}
}

// UndoHold takes back units that a report was granted to hold, and reports whether it did. It does nothing if the
// worker has reported anew since: that report says what the worker holds.
func (v *View) UndoHold(granted *quota.Report, units uint32) bool {
	h := v.record.Holders.find(granted.Worker)
	if h == nil || h.Number != granted.Number {
		return false
	}
	h.Held -= min(units, h.Held)
	return true
}

const (
	// MaxHolders is how many workers may hold units of one key.
	MaxHolders = 256
	// emptyNs is how long a holder of nothing is remembered at most, so that no late report counts twice.
	emptyNs = 60 * second
)

var (
	// ErrHolders says that one worker more would hold units of the key than may.
	ErrHolders = errors.New("256 workers hold units of this key: another one may once one of them holds none")
	// ErrStale says that a report is no newer than the last one noted.
	ErrStale = errors.New("a newer report of the worker is noted already")
)

// Holder is what the store keeps of a worker's last report of a key. quota.Sums is the worker's side, and draws
// both.
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

// Holders are the workers that hold units of a key.
type Holders []Holder

// Held is how many units are held.
func (hs Holders) Held() (units uint32) {
	for i := range hs {
		units = limit.AddSaturating(units, hs[i].Held)
	}
	return units
}

// endNs is when the last holder goes, 0 if there is none.
func (hs Holders) endNs() (end int64) {
	for i := range hs {
		end = max(end, hs[i].endNs())
	}
	return end
}

func (hs Holders) find(worker uint64) *Holder {
	for i := range hs {
		if hs[i].Worker == worker {
			return &hs[i]
		}
	}
	return nil
}

// findOrAdd returns the worker's holder, a new one if it has none.
func (hs *Holders) findOrAdd(worker uint64) (*Holder, error) {
	if h := hs.find(worker); h != nil {
		return h, nil
	}
	if len(*hs) >= MaxHolders && !hs.dropEmpty() {
		return nil, ErrHolders
	}
	*hs = append(*hs, Holder{Worker: worker})
	return &(*hs)[len(*hs)-1], nil
}

// dropEmpty drops the oldest holder of nothing, and reports whether there was one.
func (hs *Holders) dropEmpty() bool {
	oldest := -1
	for i := range *hs {
		h := &(*hs)[i]
		if h.Held == 0 && (oldest < 0 || h.NotedNs < (*hs)[oldest].NotedNs) {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	*hs = slices.Delete(*hs, oldest, oldest+1)
	return true
}

// dropSilent drops the holders that have ended by now, and returns them in the order in which they end.
func (hs *Holders) dropSilent(now int64) (silent []Holder) {
	for _, h := range *hs {
		if h.endNs() <= now {
			silent = append(silent, h)
		}
	}
	if len(silent) == 0 {
		return nil
	}
	*hs = slices.DeleteFunc(*hs, func(h Holder) bool { return h.endNs() <= now })
	slices.SortStableFunc(silent, func(a, b Holder) int { return cmp.Compare(a.endNs(), b.endNs()) })
	return silent
}
