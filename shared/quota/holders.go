package quota

import (
	"errors"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// MaxHolders is how many workers may hold units of one key.
	MaxHolders = 256
	// emptyNs is how long a row that holds nothing is remembered at most, so that no late
	// message counts twice.
	emptyNs = 60 * second
)

var (
	// ErrHolders is for the worker that would be one too many.
	ErrHolders = errors.New("256 workers hold units of this key: another one may once one of them holds none")
	// ErrStale is for what a worker has stated before something that is known already.
	ErrStale = errors.New("the worker has stated another level since")
)

// Holder is what one worker has stated last.
type Holder struct {
	Worker  uint64
	Since   uint64
	Number  uint64
	Charged uint64
	Held    uint32
	SaidNs  int64 // when it said so
	HoldNs  int64 // for how long a silent worker holds its units
}

// dueNs is when the row goes: what it holds is charged then.
func (r *Holder) dueNs() int64 {
	if r.Held == 0 {
		return r.SaidNs + min(r.HoldNs, emptyNs)
	}
	return r.SaidNs + r.HoldNs
}

// Holders are what workers hold of a key. nil holds nothing.
type Holders struct {
	List []Holder
	// Starting says that the store has no state yet: workers state what they hold, and nothing
	// is granted.
	Starting bool
}

// Held is how many units are held.
func (r *Holders) Held() (units uint32) { return r.beside(nil) }

// beside is how many units other rows hold.
func (r *Holders) beside(row *Holder) (units uint32) {
	if r == nil {
		return 0
	}
	for i := range r.List {
		if other := &r.List[i]; other != row {
			units = limit.AddSaturating(units, other.Held)
		}
	}
	return units
}

func (r *Holders) find(worker uint64) *Holder {
	for i := range r.List {
		if r.List[i].Worker == worker {
			return &r.List[i]
		}
	}
	return nil
}

// first is the index of the row that goes first, -1 where there is none.
func (r *Holders) first() int {
	at := -1
	for i := range r.List {
		if at < 0 || r.List[i].dueNs() < r.List[at].dueNs() {
			at = i
		}
	}
	return at
}

func (r *Holders) drop(i int) { r.List = append(r.List[:i], r.List[i+1:]...) }

// make returns the worker's row, a new one where it has none. One that holds nothing makes
// room.
func (r *Holders) make(worker uint64) (*Holder, error) {
	if row := r.find(worker); row != nil {
		return row, nil
	}
	if len(r.List) >= MaxHolders {
		oldest := -1
		for i := range r.List {
			if row := &r.List[i]; row.Held == 0 && (oldest < 0 || row.SaidNs < r.List[oldest].SaidNs) {
				oldest = i
			}
		}
		if oldest < 0 {
			return nil, ErrHolders
		}
		r.drop(oldest)
	}
	r.List = append(r.List, Holder{Worker: worker})
	return &r.List[len(r.List)-1], nil
}

// expiryNs is from when the rows need not be kept.
func (r *Holders) expiryNs() int64 {
	if r == nil {
		return 0
	}
	expiry := int64(0)
	for i := range r.List {
		expiry = max(expiry, r.List[i].dueNs())
	}
	return expiry
}

func (r *Holders) shift(delta int64) {
	if r == nil {
		return
	}
	for i := range r.List {
		r.List[i].SaidNs += delta
	}
}

// lapse charges what silent workers hold up to now, each at its time. The windows may be those
// of a store, which lack limits.
func (s *State) lapse(now int64) {
	for s.Rows != nil {
		i := s.Rows.first()
		if i < 0 || s.Rows.List[i].dueNs() > now {
			return
		}
		row := s.Rows.List[i]
		s.Rows.drop(i)
		s.roll(max(row.dueNs(), s.NowNs))
		s.charge(row.Held)
	}
}

// charge counts units whose log may have forgotten how many it remembers.
func (s *State) charge(units uint32) {
	if units == 0 {
		return
	}
	for i := range s.Windows {
		if w := &s.Windows[i]; w.Algorithm == limit.SlidingWindowLog && w.Units < limit.MaxLog {
			own := *w
			own.Units = limit.MaxLog
			own.Add(&s.Usages[i], max(s.Stamp(i), s.NowNs), units)
			continue
		}
		s.bill(i, units)
	}
}

// bill counts units that are charged in one window, whatever is left. A bucket lacks no more than
// it gains within the longest window of a policy, or twice its burst: see owed.
func (s *State) bill(i int, units uint32) {
	if w := &s.Windows[i]; w.Algorithm == limit.TokenBucket {
		most := max(gained(w, limit.MaxPeriodNs), limit.AddSaturating(w.Burst, w.Burst))
		units = min(units, most-min(w.Count(&s.Usages[i], s.Stamps[i]), most))
	}
	one := s.Some(i, i+1)
	one.Add(units, Terms{})
}

// Say takes what a worker states and, where it asks for units, holds them if all windows have
// room for them beside what is held, and slots, the limit of what is held. It charges
// the worker's answers in any case. ok says that the part's cost is held; stated is false where
// there was nothing to note: a denied request leaves no row. Who states that it holds nothing
// has one, and so has a worker of which something older may be under way, so that it does not
// count.
func (s *State) Say(p *Part, slots *limit.Window) (units uint32, ok, stated bool, err error) {
	l, row := p.Report, s.Rows.find(p.Worker)
	l.Held = min(l.Held, s.mostHeld(slots, row))
	charged := l.Charged - min(l.Known, l.Charged)
	switch {
	case row == nil:
	case l.Number <= row.Number:
		return 0, false, false, ErrStale
	case l.Since == row.Since:
		charged = l.Charged - min(row.Charged, l.Charged)
	}
	units, ok = s.room(p, slots, l.Held, row)
	if row == nil && charged == 0 && l.Held == 0 && units == 0 && p.Cost > 0 && l.Since == l.Number {
		return 0, ok, false, nil
	}
	if row, err = s.Rows.make(l.Worker); err != nil {
		return 0, false, false, err
	}
	*row = Holder{l.Worker, l.Since, l.Number, l.Charged, l.Held, s.NowNs, slots.PeriodNs}
	if charged > 0 { // a hold opens no window
		for i := range s.Windows {
			s.bill(i, uint32(min(charged, saturated)))
		}
		units, ok = s.room(p, slots, l.Held, row)
	}
	row.Held = limit.AddSaturating(row.Held, units)
	return units, ok, true, nil
}

// mostHeld is how many units one worker may say that it holds: what all may hold together. So
// the units of one that is silent then are charged as a hit of a whole limit at most. What its row
// has it may hold by a larger limit, where requests of one key have several.
func (s *State) mostHeld(slots *limit.Window, row *Holder) uint32 {
	most := uint32(saturated)
	if !slots.Unlimited {
		most = slots.Limit
	}
	for i := range s.Windows {
		if w := &s.Windows[i]; !w.Unlimited {
			most = min(most, w.Max())
		}
	}
	if row != nil {
		most = max(most, row.Held)
	}
	return most
}

// room is how many units the part may hold beside what others hold and the worker's own.
func (s *State) room(p *Part, slots *limit.Window, own uint32, row *Holder) (units uint32, ok bool) {
	left := s.leftBeside(slots, own, row)
	switch {
	case p.Cost == 0:
		return 0, true
	case left < p.Cost || s.Rows.Starting:
		return 0, false
	}
	return min(left, max(p.Waiting, p.Cost)), true
}

// leftBeside is how many units are left beside what others hold and the worker's own.
func (s *State) leftBeside(slots *limit.Window, own uint32, row *Holder) uint32 {
	left := s.Left(Terms{})
	if !slots.Unlimited {
		left = min(left, slots.Limit)
	}
	return left - min(left, limit.AddSaturating(s.Rows.beside(row), own))
}

// AwaitsStart reports whether nothing but the store's start keeps a part from its cost.
func (s *State) AwaitsStart(p *Part, slots *limit.Window) bool {
	return s.Rows.Starting && p.Cost > 0 && s.leftBeside(slots, p.Held, s.Rows.find(p.Worker)) >= p.Cost
}

// HasRoom reports whether a cost would be held.
func (s *State) HasRoom(cost uint32, slots *limit.Window) bool {
	_, ok := s.room(&Part{Cost: cost}, slots, 0, nil)
	return ok
}

// Unsay takes back units that a statement was granted, unless the worker has stated something
// since.
func (r *Holders) Unsay(l *Report, units uint32) bool {
	row := r.find(l.Worker)
	if row == nil || row.Number != l.Number {
		return false
	}
	row.Held -= min(units, row.Held)
	return true
}

// HeldWaitNs is how long a cost must wait that Say did not grant. heldBack says that the windows
// have room for it, beside what is held.
func (s *State) HeldWaitNs(cost uint32, slots *limit.Window) (wait int64, heldBack bool) {
	if !slots.Unlimited && cost > slots.Limit {
		return limit.Never, false
	}
	if wait = s.WaitNs(cost); wait != 0 {
		return wait, false
	}
	return limit.HeldRetryNs, true
}
