package quotaservice

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// operation is one thing that is to be done to one key. If the store refuses its swap, it is decided
// again on the value that is there.
type operation struct {
	*definition
	action   action         // what is to be done; nil if it adds up
	adds     *addUp         // instead of an action, for a key whose value is a sum: see sum.go
	storeKey [16]byte       // under which the store keeps the value
	domain   string         // whose key it is
	shifted  []limit.Window // definition.Windows as they hold for the key: shifted by its jitter
	owner    owner          // learns what came of it

	outcome
}

// action is what an operation does to a key:
//
//	action      whose                       what it does                               writes          file
//	hit         part of an ask, operator's, takes units if all windows have them left  denied, taken,  hit.go
//	            call with keep              (of units that are held: hold.go)          againNs, noted
//	keepDenial  part of an ask in shadow    counts its denial, or begins a block       denied, noted   hit.go
//	undo        part of an ask, call        takes back a hit whose units nobody got    uncounted       hit.go
//	giveUp      stream                      uncounts units that a proxy returns        uncounted       hit.go
//	charge      call                        counts units, whatever is left             denied          count.go
//	inspect     operator's                  changes nothing                            denied          operate.go
//	inc         operator's                  counts units, whatever is left                             operate.go
//	set         operator's                  counts so many units and nothing else                      operate.go
//	reset       operator's                  forgets the key                            hadUsage        operate.go
//
// Where denied is written, waitNs is too. For units that are held, hit and inspect also write heldBack, needsAge and
// err, and undo writes noted. The rest of an outcome is decideOn's.
type action interface {
	// carryOut does it to the operation's windows s, which share the memory of the record, and writes to o what
	// came of it. changed says that the record counts something else now.
	carryOut(o *operation, r *record, s quota.State) (changed bool)
}

// owner learns what came of its operations: a group of its ask, returned of what a proxy gives
// back, a waiter of what an operator does, a call of its hits.
type owner interface {
	// operationDone is called while the service is locked.
	operationDone(o *operation)
}

// outcome is what an operation came to when it was decided last. decideOn writes it, and learnSum that of
// one that adds up. If its swap failed, takeResult writes err.
type outcome struct {
	err       error            // of the store, or why the value cannot be read
	againNs   int64            // not now, but at this instant; 0 = done
	nowNs     int64            // when it was decided, by the store's clock
	untilNs   int64            // when the first window ends that it counts in
	standings []quota.Standing // of the windows after it, and behind them what is held
	needsAge  bool             // it holds units, or says that they would be: not while the store is starting
	noted     bool             // of a part with a report: false = the proxy has to report again
	rebased   bool             // the store's clock was set back since the value was written

	// Whether units are left.
	denied   bool
	blocked  bool  // the key was blocked before it
	heldBack bool  // only what is held leaves no room
	waitNs   int64 // until they are, if nobody else asks

	taken     taken  // by a hit
	uncounted uint32 // by an undo or a giveUp
	hadUsage  bool   // of a reset: the key had counted something
}

// taken is what a hit has taken.
type taken struct {
	units   uint32
	validNs int64   // for how long they may be spent
	leased  bool    // they may be kept for later requests
	counted counted // for an undo or a giveUp; not of units that are held
}

// counted says what a hit has counted where.
type counted struct {
	quota.Counted
	generation uint64
}

// random is for nonces and generations. Nobody gains by guessing them.
func random() uint64 { return rand.Uint64() } //nolint:gosec // it is fast, and seeded by the system

// decideOn decides the operation on the record at storeNs, when the store is starting for startingForNs
// more: it carries out its action. It reports whether that changed what the record counts.
func (o *operation) decideOn(r *record, storeNs, startingForNs int64) (changed bool) {
	o.outcome = outcome{standings: o.standings[:0]}
	o.rebased = r.bringTo(storeNs)
	if _, isReset := o.action.(reset); isReset { // before arrangeFor, which may find no room for the operation's windows
		o.hadUsage = r.forget()
	}
	s, err := r.arrangeFor(o.definition, o.shifted, startingForNs > 0)
	if err != nil {
		o.err, o.untilNs = err, math.MaxInt64
		return false
	}
	o.nowNs, o.blocked = s.NowNs, s.Blocked()
	changed = o.action.carryOut(o, r, s)
	if errors.Is(o.err, ErrStarting) {
		o.waitNs = startingForNs
	}
	if o.againNs == 0 {
		o.stand(&s)
	}
	o.untilNs = s.FirstEndNs()
	return changed || o.rebased
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

// add counts n units in the window, or in all.
func add(s *quota.State, window int, n uint32) {
	of := *s
	if window != AllWindows {
		of = s.Some(window, window+1)
	}
	of.Add(n, quota.Unleased)
}
