package quotaservice

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// linger is how much longer a value lives than what it has counted.
const linger = 10 * second

// aheadNs is how far ahead of the store's clock a value may be. Where it lies further
// ahead, the clock was set back.
const aheadNs = 10 * second

const second = 1_000_000_000

// What says what an operation does to a key.
type What uint8

// The operations. Operate takes the first ones.
const (
	Inspect What = iota // change nothing
	Hit                 // take the units if all windows have them left: a proxy's ask, or as a request without a lease
	Inc                 // count the units more, whatever is left
	Set                 // as if the key had used so many units, and nothing before
	Reset               // forget the key
	count               // count an ask in shadow that is denied
	undo                // uncount a grant that nobody got
	giveUp              // uncount units that a proxy returns
)

// operation is what is to be done to one key. It can be carried out again on
// another value, if the store has refused the first.
type operation struct {
	what What
	*definition
	windows []limit.Window // its own, as they hold for the key
	part    quota.Part     // of ask
	charge  charge         // of undo and giveUp
	n       uint32         // units of undo, giveUp, inc, set and inspect
	window  int            // of inc and set, or AllWindows

	key    [16]byte
	domain string // whose key it is
	owner  owner

	outcome
}

// owner learns what came of its operations. The service is locked then.
type owner interface{ finished(o *operation) }

// charge says what a grant has counted where.
type charge struct {
	quota.Counted
	generation uint64
}

// outcome is what an operation came to.
type outcome struct {
	err       error // of the store, or why the value cannot be read
	againNs   int64 // not now, but at this instant; 0 = done
	denied    bool
	units     uint32 // granted, or given back
	validNs   int64
	leased    bool // units may be kept for later requests
	waitNs    int64
	heldBack  bool // only what is held leaves no room
	holds     bool // it holds units, or says that they would be: not while the store is starting
	stated    bool // what the worker has stated is noted
	charged   charge
	standings []quota.Standing
	nowNs     int64 // when it was decided, by the store's clock
	untilNs   int64 // when the first window ends that it counts in
	hadUsage  bool  // of reset: the key had counted something
	rebased   bool  // the store's clock was set back since the value was written
}

// random is for nonces and generations. Nobody gains by guessing them.
func random() uint64 { return rand.Uint64() } //nolint:gosec // it is fast, and seeded by the system

// carryOut carries the operation out on the record at the time now, and reports
// whether that changed what the record counts.
func (o *operation) carryOut(r *record, now int64) (changed bool) {
	o.outcome = outcome{standings: o.standings[:0]}
	s, err := r.prepare(o, now)
	if err != nil {
		o.err, o.untilNs = err, math.MaxInt64
		return false
	}
	o.nowNs = s.NowNs
	switch o.what {
	case Hit:
		changed = o.ask(r, &s)
	case count:
		o.denied = true
		if changed = s.Left(quota.Terms{}) < o.part.Cost; changed { // else a window has ended since
			o.countDenied(&s)
		}
	case undo, giveUp:
		changed = o.giveBack(r, &s)
	case Reset:
		changed = true
	case Set:
		setTo(&s, o.window, o.n)
		r.generation = random() // a return does not know which window was set since its grant
		changed = true
	case Inc:
		add(&s, o.window, o.n)
		changed = true
	case Inspect:
		o.judge(&s, o.n)
	}
	if errors.Is(o.err, ErrStarting) {
		o.waitNs = r.startsNs(now)
	}
	if o.againNs == 0 && o.what != giveUp {
		for i := range s.Windows {
			o.standings = append(o.standings, s.Standing(i))
		}
		if o.slots != nil {
			o.standings = append(o.standings, quota.Standing{Used: s.Holders.Held()})
		}
	}
	o.untilNs = s.EndNs()
	return changed || o.rebased
}

func (o *operation) ask(r *record, s *quota.State) (changed bool) {
	if o.slots != nil {
		return o.hold(s)
	}
	p := &o.part
	units, terms, ok := s.Grant(o.Lease, p)
	if terms.AgainNs != 0 && !p.Inspect && (p.Cost > 0 || p.Spent > 0) {
		o.againNs = terms.AgainNs
		return false
	}
	if p.Spent > 0 {
		countStated(s, p.Spent)
		units, terms, ok = s.Grant(o.Lease, p)
		changed = true
	}
	switch {
	case p.Inspect:
	case !ok && p.Cost > 0:
		o.denied, o.waitNs = true, s.WaitNs(p.Cost)
		if o.waitNs == 0 { // only what workers of another policy hold leaves no room
			o.waitNs = limit.HeldRetryNs
		}
		if o.CountDenied && !p.Shadow { // one in shadow counts only once no other part has denied
			o.countDenied(s)
			changed = true
		}
	case units > 0:
		o.units, o.validNs, o.leased = units, s.ValidNs(terms), terms.EndNs != 0
		o.charged = charge{s.Add(units, terms), r.generation}
		changed = true
	}
	return changed
}

// countDenied counts what waits for a denied ask. The wait is from the new count.
func (o *operation) countDenied(s *quota.State) {
	countStated(s, max(o.part.Waiting, o.part.Cost))
	o.waitNs = s.WaitNs(o.part.Cost)
}

// countStated counts units that nothing but the proxy's word says were asked for. In
// each window they count as at most its limit, and no bucket owes more than it holds
// when full: a wrong number locks a key for no longer than using up its limit does.
func countStated(s *quota.State, units uint32) {
	for i := range s.Windows {
		w, n := &s.Windows[i], units
		if !w.Unlimited {
			n = min(n, w.Max())
		}
		if w.Algorithm == limit.TokenBucket {
			lacks, most := uint64(w.Count(&s.Usages[i], s.Stamps[i])), 2*uint64(w.Burst)
			n = uint32(min(uint64(n), most-min(lacks, most)))
		}
		add(s, i, n)
	}
}

// giveBack uncounts units where they are still counted. Where the record has been
// made anew since, they are gone already.
func (o *operation) giveBack(r *record, s *quota.State) (changed bool) {
	if o.slots != nil {
		if o.stated = s.Holders.Refund(&o.part.Report, o.n); o.stated {
			o.units = o.n
		}
		return o.stated
	}
	if r.generation != o.charge.generation {
		return false
	}
	if s.Refund(&o.charge.Counted, o.n, o.what == undo) {
		o.units = o.n
	}
	return true
}

var errUnknownWindow = errors.New("the algorithm of a window is not known: the proxy runs a newer release")

// check refuses a definition that cannot be decided by.
func check(d *quota.Definition) error {
	for i := range d.Windows {
		w := &d.Windows[i]
		err := checkWindow(w)
		switch {
		case w.Algorithm == limit.Concurrency && i == len(d.Windows)-1:
			if w.PeriodNs < limit.MinHoldNs || w.PeriodNs > limit.MaxHoldNs {
				return errors.New("a hold is not 10 seconds to 1 day long")
			}
			if d.CountDenied || d.Lease != quota.LeaseOff {
				return errors.New("what holds units until their answers takes no count_denied and no lease")
			}
		case err != nil:
			return err
		case i > 0 && d.Windows[i-1].Compare(*w) >= 0:
			return errors.New("windows are not in order of their period, algorithm, offset, jitter and elastic, or one is there twice")
		case d.CountDenied && (w.Algorithm == limit.TokenBucket || d.Lease != quota.LeaseOff):
			return errors.New("count_denied takes no token bucket and no lease")
		}
	}
	return nil
}

// checkWindow refuses a window that counts nothing that is known.
func checkWindow(w *limit.Window) error {
	switch {
	case !slices.Contains(limit.Counting[:], w.Algorithm):
		return errUnknownWindow
	case !w.InRange():
		return errors.New("a window is not 1 ms to 366 days or 1, 2, 3, 4, 6 or 12 months long, or its offset is not less")
	case w.Unlimited && w.Algorithm == limit.TokenBucket && (w.Limit > 0 || w.Burst > 0):
		return errors.New("an unlimited bucket has no limit and no burst")
	case w.Units > limit.MaxLog:
		return errors.New("a log remembers at most 512 units")
	}
	return nil
}
