// Package action is what the quota service does to a key's record: each Action reads or changes what the key has
// counted, and says what came of it. It is the arithmetic of package balance, put together.
//
// Its invariant: what comes of an action depends on the record and on the instant alone. So an operation can be
// decided again on the value that another service has written meanwhile. It knows neither the store, nor who asks.
//
// For example, a hit of 1 unit is decided on a record in which 10 of 10 units are used:
//
//	Operation.Decide  brings the record to the instant, and puts the windows of the definition first
//	Hit.carryOut      no unit is left: Denied, and WaitNs until the window ends
//	Operation.Decide  Standings: 10 are used. The record has not changed, so nothing need be written
//
// To read it, begin here:
//
//	action.go      an Operation, and its Outcome
//	definition.go  the counter that it is decided by
//	hit.go         what asks do: take units, and give them back
//	hold.go        the same with units that are held
//	charge.go      what most calls do
//	operator.go    what operators do
package action

import (
	"errors"
	"math"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Action is what is done to a key:
//
//	action      whose                       what it does                               writes
//	Hit         part of an ask, operator's, takes units if all windows have them left  Denied, Taken,
//	            call that may be undone     (of units that are held: hold.go)          AgainNs, Noted
//	keepDenial  part of an ask in shadow    counts its denial, or begins a block       Denied, Noted
//	undo        part of an ask, call        takes back a hit whose units nobody got    Uncounted
//	Return      stream                      uncounts units that a proxy returns        Uncounted
//	Charge      call                        counts units, whatever is left             Denied
//	Inspect     operator's                  changes nothing                            Denied
//	Inc         operator's                  counts units, whatever is left
//	Set         operator's                  counts so many units and nothing else
//	Reset       operator's                  forgets the key                            HadUsage
//
// Where Denied is written, WaitNs is too. For units that are held, Hit and Inspect also write HeldBack, NeedsAge and
// Err, and undo writes Noted. Decide writes the rest of an Outcome.
type Action interface {
	// carryOut does it to the record, as the operation's definition sees it, and writes to o what came of it. changed
	// says that the record counts something else now.
	carryOut(o *Operation, r *record.Record, v balance.View) (changed bool)
}

// beforehand is an Action that also changes the record before this has the definition's windows.
type beforehand interface {
	carryOutBefore(o *Operation, r *record.Record)
}

// Operation is an action on one key of a definition, and what came of it.
type Operation struct {
	*Definition
	Action  Action
	Shifted []limit.Window // Definition.Windows as they hold for the key: see Definition.ShiftedFor
	Outcome
}

// Outcome is what an operation came to when it was decided last.
type Outcome struct {
	Err       error            // why it could not be decided
	AgainNs   int64            // not now, but at this instant; 0 = done
	NowNs     int64            // when it was decided, by the store's clock
	UntilNs   int64            // when the first window ends that it counts in
	Standings []quota.Standing // of the windows after it, and behind them what is held
	NeedsAge  bool             // it holds units, or says that they would be: not while the store is starting
	Noted     bool             // of a part with a report: false = the proxy has to report again
	Rebased   bool             // the store's clock was set back since the record was written

	// Whether units are left.
	Denied   bool
	Blocked  bool  // the key was blocked before it
	HeldBack bool  // only what is held leaves no room
	WaitNs   int64 // until they are, if nobody else asks

	Taken     Taken  // by a Hit
	Uncounted uint32 // by an undo or a Return
	HadUsage  bool   // of a Reset: the key had counted something
}

// Taken is what a hit has taken.
type Taken struct {
	Units   uint32
	ValidNs int64   // for how long they may be spent
	Leased  bool    // they may be kept for later requests
	Counted Counted // for an undo or a Return; not of units that are held
}

// Counted says what a hit has counted where.
type Counted struct {
	balance.Counted
	generation uint64 // of the record
}

// isIn reports whether the record may still count the units. If it has been made anew since, they are gone already.
func (c *Counted) isIn(r *record.Record) bool { return r.Generation == c.generation }

// ErrStarting is why units are not held yet.
var ErrStarting = errors.New("the quota store is starting: it has no state yet, and proxies report what they hold")

// Decide decides the operation on the record at storeNs, when the store is starting for startingForNs
// more: it carries out its action. It reports whether that changed what the record counts.
func (o *Operation) Decide(r *record.Record, storeNs, startingForNs int64) (changed bool) {
	o.Outcome = Outcome{Standings: o.Standings[:0]}
	o.Rebased = r.BringTo(storeNs)
	if a, ok := o.Action.(beforehand); ok {
		a.carryOutBefore(o, r)
	}
	v, err := r.ArrangeFor(o.Windows, o.Shifted, o.HoldLimit)
	if err != nil {
		o.Err, o.UntilNs = err, math.MaxInt64
		return false
	}
	v.IsStarting = startingForNs > 0
	o.NowNs, o.Blocked = v.State.NowNs, v.IsBlocked()
	changed = o.Action.carryOut(o, r, v)
	if errors.Is(o.Err, ErrStarting) {
		o.WaitNs = startingForNs
	}
	if o.AgainNs == 0 {
		o.stand(&v)
	}
	o.UntilNs = v.FirstEndNs()
	return changed || o.Rebased
}

// stand says how the windows stand, and what is held.
func (o *Operation) stand(v *balance.View) {
	for i := range v.Windows {
		o.Standings = append(o.Standings, v.Standing(i))
	}
	if o.HoldLimit != nil {
		o.Standings = append(o.Standings, quota.Standing{Used: v.State.Holders.Held()})
	}
}

// judge finds out whether units are left.
func (o *Operation) judge(v *balance.View, units uint32) {
	if o.HoldLimit != nil {
		o.judgeHeld(v, units)
		o.NeedsAge = units > 0 && !o.Denied && o.Err == nil
		return
	}
	if v.LeftBesideHeld() < units || o.Blocked {
		o.refuse(v, units)
	}
}

// refuse denies a cost, and says how long it must wait.
func (o *Operation) refuse(v *balance.View, cost uint32) {
	o.Denied, o.WaitNs = true, v.WaitNs(cost)
	if o.WaitNs == 0 { // only what workers of another policy hold leaves no room
		o.WaitNs = limit.HeldRetryNs
	}
}

// add counts n units in the window, or in all.
func add(v *balance.View, window int, n uint32) {
	if window == AllWindows {
		v.Add(n)
	} else {
		v.AddIn(window, n)
	}
}
