package quotaservice

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// linger is how much longer a value lives than what it has counted.
const linger = 10 * second

// maxAheadNs is how far ahead of the store's clock a value may be. If it lies further
// ahead, the clock was set back.
const maxAheadNs = 10 * second

const second = 1_000_000_000

// What says what an operation does to a key.
type What uint8

// The operations. Operate takes the first five.
//
//	            whose           it reads        it tells, beside denied, waitNs and standings
//	Inspect     an operator's   n
//	Hit         a proxy's part  part            units and their terms; what a Report noted
//	            an operator's,
//	            a call's        part.Cost       units
//	Inc, Set    an operator's   n, window
//	Reset       an operator's                   hadUsage
//	keepDenial  a group's       part
//	undo        a group's,
//	            a call's        back, counted   uncounted
//	giveUp      a return's      back, counted   uncounted
//	charge      a call's        n
//	addUp       a call's        n, span         instead of a record its key has a sum: see sum.go
const (
	Inspect    What = iota // change nothing
	Hit                    // take the units if all windows have them left: a proxy's ask, or as a request without a lease
	Inc                    // count the units more, whatever is left
	Set                    // as if the key had used so many units, and nothing before
	Reset                  // forget the key
	keepDenial             // keep the denial of a part in shadow: see operation.keepDenial
	undo                   // uncount a grant that nobody got
	giveUp                 // uncount units that a proxy returns
	charge                 // count the units of a call, whatever is left
	addUp                  // the same, where the value is a sum
)

// operation is what is to be done to one key. It can be carried out again on
// another value, if the store has refused the first.
type operation struct {
	what What
	*definition
	shifted []limit.Window // definition.Windows as they hold for the key: shifted by its jitter
	part    quota.Part     // of Hit and keepDenial
	n       uint32         // units of Inc, Set, Inspect, charge and addUp
	back    uint32         // units that undo and giveUp are to uncount
	window  int            // of Inc and Set, or AllWindows
	span    span           // of addUp

	takesNothing bool // of a Hit: another part of its ask is denied already, or has failed

	key    [16]byte
	domain string // whose key it is
	owner  owner

	counted counted // by a Hit, for its undo and giveUp
	outcome
}

// owner learns what came of its operations: a group of its ask, returns of what a proxy gives
// back, a waiter of what an operator does, a call of its hits. The service is locked then.
type owner interface{ operationDone(o *operation) }

// counted says what a grant has counted where.
type counted struct {
	quota.Counted
	generation uint64
}

// outcome is what an operation came to when it was carried out last. carryOut writes it, and learnSum that of
// an addUp. If its swap failed, takeResult writes err.
type outcome struct {
	err       error            // of the store, or why the value cannot be read
	againNs   int64            // not now, but at this instant; 0 = done
	nowNs     int64            // when it was decided, by the store's clock
	untilNs   int64            // when the first window ends that it counts in
	standings []quota.Standing // of the windows after it, and behind them what is held
	needsAge  bool             // it holds units, or says that they would be: not while the store is starting
	noted     bool             // the worker's report is noted
	rebased   bool             // the store's clock was set back since the value was written

	// Whether units are left.
	denied   bool
	blocked  bool  // the key was blocked before it
	heldBack bool  // only what is held leaves no room
	waitNs   int64 // until they are, if nobody else asks

	// What a Hit is granted.
	units   uint32
	validNs int64 // for how long
	leased  bool  // units may be kept for later requests

	uncounted uint32 // by undo or giveUp
	hadUsage  bool   // of Reset: the key had counted something
}

// random is for nonces and generations. Nobody gains by guessing them.
func random() uint64 { return rand.Uint64() } //nolint:gosec // it is fast, and seeded by the system

// carryOut carries the operation out on the record at storeNs, and reports whether that changed what the
// record counts.
func (o *operation) carryOut(r *record, storeNs int64) (changed bool) {
	o.outcome = outcome{standings: o.standings[:0]}
	o.rebased = r.bringTo(storeNs)
	if o.what == Reset {
		o.hadUsage = r.forget()
	}
	s, err := r.arrangeFor(o, storeNs)
	if err != nil {
		o.err, o.untilNs = err, math.MaxInt64
		return false
	}
	o.nowNs, o.blocked = s.NowNs, s.Blocked()
	changed = o.change(r, &s)
	if errors.Is(o.err, ErrStarting) {
		o.waitNs = r.startingForNs(storeNs)
	}
	if o.againNs == 0 && o.what != giveUp {
		o.stand(&s)
	}
	o.untilNs = s.FirstEndNs()
	return changed || o.rebased
}

// change does what the operation does.
func (o *operation) change(r *record, s *quota.State) (changed bool) {
	switch o.what {
	case Inspect:
		o.judge(s, o.n)
		return false
	case Hit:
		if o.holdLimit != nil {
			return o.takeHold(s)
		}
		return o.decideAsk(r, s)
	case keepDenial:
		o.denied = true
		o.noted, o.waitNs = o.holdLimit != nil, s.WaitNs(o.part.Cost) // its Hit has noted the report
		if s.Left(quota.Unleased) >= o.part.Cost {                    // a window has ended since
			return false
		}
		return o.keepDenial(s)
	case undo, giveUp:
		if o.holdLimit != nil {
			return o.refundHold(s)
		}
		return o.refund(r, s)
	case Inc:
		add(s, o.window, o.n)
	case Set:
		setTo(s, o.window, o.n)
		r.generation = random() // a return does not know which window was set since its grant
	case charge:
		return o.charge(s)
	case Reset: // carryOut has forgotten the key
	case addUp: // never: its key has a sum, not a record
	}
	return true
}

// stand says how the windows stand, and what is held.
func (o *operation) stand(s *quota.State) {
	for i := range s.Windows {
		o.standings = append(o.standings, s.StandingOf(i))
	}
	if o.holdLimit != nil {
		o.standings = append(o.standings, quota.Standing{Used: s.Holders.Held()})
	}
}

// decideAsk counts what a part is granted.
func (o *operation) decideAsk(r *record, s *quota.State) (changed bool) {
	p := &o.part
	decision, units, terms := s.Decide(o.Lease, p)
	if decision == quota.NotYet && !p.Inspect && (p.Cost > 0 || p.Spent > 0) {
		o.againNs = terms.AgainNs
		return false
	}
	if p.Spent > 0 {
		countClaimed(s, p.Spent)
		decision, units, terms = s.Decide(o.Lease, p)
		changed = true
	}
	switch {
	case p.Inspect:
	case decision != quota.Passes && (p.Cost > 0 || o.blocked):
		o.denied, o.waitNs = true, s.WaitNs(p.Cost)
		if o.waitNs == 0 { // only what workers of another policy hold leaves no room
			o.waitNs = limit.HeldRetryNs
		}
		if !p.Shadow { // one in shadow counts only once no other part has denied
			changed = o.keepDenial(s) || changed
		}
	case o.takesNothing:
	case units > 0:
		o.units, o.leased = units, terms.EndNs != 0
		o.validNs = s.ValidNs(terms)
		o.counted = counted{s.Add(units, terms), r.generation}
		changed = true
	default: // it asks for nothing
		o.validNs = s.ValidNs(terms)
	}
	return changed
}

// mayKeepDenial reports whether the definition has something to keep of a denied ask.
func (o *operation) mayKeepDenial() bool { return o.CountDenied || o.hasBlock && !o.part.NoBlock }

// takesLast reports whether the Hit waits for the others of its ask: it takes units, and one denied for lack of these
// begins a block, although they may be uncounted at once. A denial for lack of units that are only held begins no
// block, so such a Hit need not wait.
func (o *operation) takesLast() bool { return o.hasBlock && o.holdLimit == nil }

// keepDenial keeps of a denied ask what its definition says: what waits for it counts, and the windows' denial
// begins the key's block or prolongs it. It reports whether that changed something. The wait is from
// the new count.
func (o *operation) keepDenial(s *quota.State) (changed bool) {
	cost := o.part.Cost
	if cost == 0 {
		return false
	}
	if !o.part.NoBlock && s.Left(quota.Unleased) < cost { // not only what is held leaves no room
		changed = s.Deny()
	}
	if o.CountDenied {
		countClaimed(s, max(o.part.Waiting, cost))
		changed = true
	}
	if changed {
		o.waitNs = s.WaitNs(cost)
	}
	return changed
}

// countClaimed counts units that were asked for by nothing but the proxy's word. In each window
// they count as at most its limit, and no bucket owes more than it holds when full: a wrong
// number locks a key for no longer than using up its limit does.
func countClaimed(s *quota.State, units uint32) {
	for i := range s.Windows {
		w, n := &s.Windows[i], units
		if !w.Unlimited {
			n = min(n, w.Max())
		}
		if w.Algorithm == limit.TokenBucket {
			lacks, most := uint64(w.Count(&s.Usages[i], s.SpendByNs[i])), 2*uint64(w.Burst)
			n = uint32(min(uint64(n), most-min(lacks, most)))
		}
		add(s, i, n)
	}
}

// refund uncounts units where they are still counted. If the record has been made anew since,
// they are gone already.
func (o *operation) refund(r *record, s *quota.State) (changed bool) {
	if r.generation != o.counted.generation {
		return false
	}
	if s.Refund(&o.counted.Counted, o.back, o.what == undo) {
		o.uncounted = o.back
	}
	return true
}

// charge counts units, whatever is left. No bucket or sliding window counts more of one call than
// countClaimed lets it, so that a wrong number does not close it for long. A fixed window ends anyway.
func (o *operation) charge(s *quota.State) (changed bool) {
	if o.n == 0 {
		o.look(s)
		return false
	}
	o.judge(s, o.n)
	for i := range s.Windows {
		if s.Windows[i].IsFixed() {
			add(s, i, o.n)
			continue
		}
		one := s.Some(i, i+1)
		countClaimed(&one, o.n)
	}
	return true
}

// look finds out whether a window is over its limit, or one that cannot be has nothing left.
func (o *operation) look(s *quota.State) {
	for i := range s.Windows {
		w, of := &s.Windows[i], s.Some(i, i+1)
		isOver := of.Left(quota.Unleased) == 0
		if w.IsFixed() {
			isOver = isOver && s.StandingOf(i).Used > w.Limit
		}
		if isOver {
			o.denied, o.waitNs = true, s.WaitNs(1)
		}
	}
}

// judge finds out whether units are left.
func (o *operation) judge(s *quota.State, units uint32) {
	if o.holdLimit != nil {
		o.judgeHeld(s, units)
		o.needsAge = units > 0 && !o.denied && o.err == nil
		return
	}
	if s.Left(quota.Unleased) < units || o.blocked {
		o.denied, o.waitNs = true, s.WaitNs(units)
	}
}

// setTo makes the window, or all, count n units and nothing else. A block goes on.
func setTo(s *quota.State, window int, n uint32) {
	for i := range s.Windows {
		if window != AllWindows && window != i || s.Windows[i].Algorithm == limit.Block {
			continue
		}
		s.Usages[i] = limit.Usage{}
		if window == AllWindows && s.SpendByNs != nil {
			s.SpendByNs[i] = s.NowNs
		}
	}
	add(s, window, n)
}

// add counts n units in the window, or in all.
func add(s *quota.State, window int, n uint32) {
	of := *s
	if window != AllWindows {
		of = s.Some(window, window+1)
	}
	of.Add(n, quota.Unleased)
}
