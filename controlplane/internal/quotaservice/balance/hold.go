package balance

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Note notes the report of a part, for a definition that holds units. It charges what the report has charged and the
// store has not counted yet. If the part asks for units, it holds those of the offer.
//
//	isKept  err                     the report
//	true    nil                     is kept in its worker's holder
//	false   nil                     is forgotten: it says nothing, and its part gets nothing
//	false   ErrStale or ErrHolders  is refused
func (v *View) Note(p *quota.Part) (isKept bool, offer Offer, err error) {
	before := v.record.Holders.find(p.Worker)
	if before != nil && p.Number <= before.Number {
		return false, Offer{}, ErrStale
	}
	held := min(p.Held, v.mostHeld(before))
	charges := notYetCounted(&p.Report, before)
	saysNothing := before == nil && held == 0 && charges == 0 && isFirst(&p.Report)
	if saysNothing && p.Cost > 0 { // such a report leaves the offer as it is: look before a holder is added
		offer = v.OfferNow(p.Cost, p.Waiting)
		if offer.Verdict != Passes { // the worker's next report says all that the store must know
			return false, offer, nil
		}
	}
	h, err := v.record.Holders.findOrAdd(p.Worker) // in the place of before
	if err != nil {
		return false, Offer{}, err
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
	offer = v.OfferNow(p.Cost, p.Waiting) // after the charge, and beside what h holds
	h.Held = limit.AddSaturating(held, offer.Units)
	return true, offer, nil
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
	// emptyNs is how long a holder is remembered at most that holds and has charged nothing, so that no late report
	// counts.
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

// endNs is when the holder goes: what it holds is charged then. One that has charged something stays as long, though it
// holds nothing: its worker may not know that this is counted, and reports it again. For example, the hold is 10
// minutes:
//
//	      worker           store
//	0 s   #7 charged 1 ->  counts 1. The answer is lost, and then the network fails
//	90 s  #8 charged 1 ->  counts 1 - 1, because it still has the holder of #7
func (h *Holder) endNs() int64 {
	if h.Held == 0 && h.Charged == 0 {
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

// dropEmpty drops the holder of nothing that ends first, and reports whether there was one.
func (hs *Holders) dropEmpty() bool {
	first := -1
	for i := range *hs {
		h := &(*hs)[i]
		if h.Held == 0 && (first < 0 || h.endNs() < (*hs)[first].endNs()) {
			first = i
		}
	}
	if first < 0 {
		return false
	}
	*hs = slices.Delete(*hs, first, first+1)
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
