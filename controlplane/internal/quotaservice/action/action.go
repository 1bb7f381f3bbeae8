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
//	action.go  an Operation, its Outcome, and the actions of operators and calls
//	terms.go   by which it is decided: the windows of a counter, and what else its definition says
//	hit.go     the actions of asks: take or hold units, keep a denial, give units back
package action

import (
	"errors"
	"math"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Operation is an action on one key of a definition.
type Operation struct {
	Terms   *Terms
	Windows balance.KeyWindows // of the Terms, for the key: see Terms.WindowsFor
	Action  Action
}

// Action is what is done to a key, and has an Effect:
//
//	action      whose                      what it does                                    its Effect has
//	Hit         part of an ask             takes units if they are left, some of them      Denial, Taken, AgainNs
//	                                       to be spent later. If another part is refused
//	                                       already, it takes nothing
//	Hold        part of an ask, where the  notes what a worker holds, and holds units      Denial, Taken, Noted
//	            definition holds units     for it if they are left
//	Take        operator's, call that may  takes units to be spent at once, if they are    Denial, Taken
//	            be undone                  left
//	keepDenial  part of an ask in shadow   counts its denial, or begins a block            Denial, Noted
//	undo        part of an ask, call       uncounts what a Hit or a Take has taken,        Uncounted
//	                                       because nobody got it
//	undoHold    part of an ask             gives up what a Hold holds for that reason      Uncounted, Noted
//	Return      stream                     uncounts units that a proxy returns             Uncounted
//	Charge      call                       counts units, whatever is left                  Denial
//	Look        call that uses no units    finds out whether the key is over its limits    Denial
//	Inspect     operator's                 changes nothing                                 Denial
//	Inc         operator's                 counts units, whatever is left
//	Set         operator's                 counts so many units and nothing else
//	Reset       operator's                 forgets the key                                 HadUsage
//
// If the definition holds units, Hold, Take and Inspect may also have NeedsAge or an Err. All actions are pointers, so
// that none has two forms. Most calls need no Action, because the store adds what they count: see addition of
// quotaservice.
type Action interface {
	// carryOut does it to the record, as the definition sees it, and writes its Effect. changed says that the record
	// counts something else now.
	carryOut(terms *Terms, v balance.View, did *Effect) (changed bool)
}

// Effect is what an action has done, if the record is as it was carried out on. What it does not have is zero.
type Effect struct {
	// Err is why it could not be done: the store is starting, the record has no room for its windows or its worker, or
	// its report is stale. Beside it only Noted and StartsInNs hold.
	Err        error
	StartsInNs int64 // if Err is ErrStarting: until the store has started

	balance.Denial // by what the record counts after it

	AgainNs int64 // nothing is decided yet: decide again at this instant; 0 = it is decided
	Taken   Taken // its Units are 0 if nothing was taken

	NeedsAge bool // it does not hold while the store is starting, because it was decided by what is held
	Noted    bool // of a part with a report: false = the proxy has to report again

	Uncounted uint32 // of what was taken before
	HadUsage  bool   // the key had counted something before
}

// Outcome is what comes of an operation: what its action has done, and how the key stands.
type Outcome struct {
	Effect
	NowNs     int64            // when it was decided, by the store's clock
	UntilNs   int64            // when the first window ends that it counts in
	Standings []quota.Standing // of the windows after it, and behind them what is held
	Blocked   bool             // the key was blocked before it
	Rebased   bool             // the store's clock was set back since the record was written
}

// Taken is what was taken of a key.
type Taken struct {
	Units   uint32
	ValidNs int64              // for how long they may be spent
	Counted balance.HowCounted // for an undo or a Return; zero of units that are held
}

// ErrStarting is why units are not held yet.
var ErrStarting = errors.New("the quota store is starting: it has no state yet, and proxies report what they hold")

// Decide decides the operation on the record at storeNs, when the store is starting for startingForNs more: it carries
// out its action, and writes what comes of that in place of what out had before. It reports whether that changed what
// the record counts.
func (o *Operation) Decide(r *balance.Record, storeNs, startingForNs int64, out *Outcome) (changed bool) {
	*out = Outcome{Standings: out.Standings[:0]}
	out.Rebased = r.BringTo(storeNs)
	if _, isReset := o.Action.(*Reset); isReset { // now, because windows of other definitions may leave no room below
		out.HadUsage = r.Forget()
	}
	v, err := r.ArrangeFor(o.Windows, o.Terms.HoldLimit, startingForNs)
	if err != nil {
		out.Err, out.UntilNs = err, math.MaxInt64
		return out.Rebased
	}
	out.NowNs, out.Blocked = v.NowNs(), v.IsBlocked()
	changed = o.Action.carryOut(o.Terms, v, &out.Effect)
	if out.AgainNs == 0 {
		out.stand(&v)
	}
	out.UntilNs = v.FirstEndNs()
	return changed || out.Rebased
}

// stand says how the windows stand, and what is held.
func (out *Outcome) stand(v *balance.View) {
	for i := range v.Windows {
		out.Standings = append(out.Standings, v.Standing(i))
	}
	if v.HoldLimit != nil {
		out.Standings = append(out.Standings, quota.Standing{Used: v.Held()})
	}
}

// What needs units goes by the same steps, and each writes what it is named for:
//
//	OfferNow     of balance.View: are units left? A Hit has OfferLease, and a Hold has the Offer of Note
//	countDenial  if they are not: the record counts that, or the key's block begins. Nothing does so for an Inspect, and
//	             keepDenial does it for a part in shadow, once its ask is granted
//	Denial       of balance.View: why, by what the record counts now
//
// A Charge denies before it counts its own units, because these count whatever is left.

// waitForStart fails, because the store is starting.
func (did *Effect) waitForStart(v *balance.View) {
	did.Err, did.StartsInNs = ErrStarting, v.StartingForNs
}

// Take takes units to be spent at once, if they are left.
type Take struct {
	Units   uint32
	NoBlock bool // see quota.Part
}

func (t *Take) carryOut(terms *Terms, v balance.View, did *Effect) (changed bool) {
	offer := v.OfferNow(t.Units, t.Units)
	did.NeedsAge = offer.NeedsAge
	switch {
	case offer.Verdict == balance.Starting:
		did.waitForStart(&v)
	case offer.Verdict == balance.TooFew:
		changed = terms.countDenial(&v, attempt{cost: t.Units, noBlock: t.NoBlock})
		did.Denial = v.Denial(t.Units)
	case t.Units > 0:
		did.Taken = takeUnits(&v, t.Units, v.NowNs())
		changed = true
	}
	return changed
}

// takeUnits counts units that may be spent until spendBy.
func takeUnits(v *balance.View, units uint32, spendBy int64) Taken {
	counted := v.Take(units, spendBy)
	return Taken{Units: units, ValidNs: v.ValidNs(spendBy), Counted: counted}
}

// AllWindows makes Inc and Set act on every window.
const AllWindows = -1

// Inspect finds out whether units are left.
type Inspect struct{ Units uint32 }

func (i *Inspect) carryOut(_ *Terms, v balance.View, did *Effect) (changed bool) {
	offer := v.OfferNow(i.Units, i.Units)
	did.NeedsAge = offer.NeedsAge
	switch offer.Verdict {
	case balance.Starting:
		did.waitForStart(&v)
	case balance.TooFew:
		did.Denial = v.Denial(i.Units)
	default: // it passes
	}
	return false
}

// Inc counts units in a window, or in all, whatever is left.
type Inc struct {
	Units  uint32
	Window int // index in the definition, or AllWindows
}

func (i *Inc) carryOut(_ *Terms, v balance.View, _ *Effect) (changed bool) {
	add(&v, i.Window, i.Units)
	return true
}

// Set makes a window, or all, count so many units and nothing else. A block goes on.
type Set struct {
	Units  uint32
	Window int // index in the definition, or AllWindows
}

func (t *Set) carryOut(_ *Terms, v balance.View, _ *Effect) (changed bool) {
	for i := range v.Windows {
		isIt := t.Window == AllWindows || t.Window == i
		if isIt && v.Windows[i].Algorithm != limit.Block {
			v.Clear(i)
		}
	}
	add(&v, t.Window, t.Units)
	v.EndReturns() // a return does not know which window was set since its grant
	return true
}

// add counts n units in the window, or in all.
func add(v *balance.View, window int, n uint32) {
	if window == AllWindows {
		v.Add(n)
	} else {
		v.AddIn(window, n)
	}
}

// Reset forgets the key. Decide does so, because it must be done before the definition's windows need room.
type Reset struct{}

func (*Reset) carryOut(*Terms, balance.View, *Effect) (changed bool) { return true }

// Charge counts units, whatever is left.
type Charge struct{ Units uint32 }

// carryOut lets no bucket or sliding window count more of one call than AddClaimed does, so that a wrong number
// does not close it for long. A fixed window ends anyway.
func (c *Charge) carryOut(_ *Terms, v balance.View, did *Effect) (changed bool) {
	if v.OfferNow(c.Units, c.Units).Verdict == balance.TooFew {
		did.Denial = v.Denial(c.Units)
	}
	for i := range v.Windows {
		if v.Windows[i].IsFixed() {
			v.AddIn(i, c.Units)
		} else {
			v.AddClaimedIn(i, c.Units)
		}
	}
	return true
}

// Look finds out whether a window is over its limit, or one that cannot be has nothing left.
type Look struct{}

func (*Look) carryOut(_ *Terms, v balance.View, did *Effect) (changed bool) {
	for i := range v.Windows {
		isOver := v.UnusedIn(i) == 0
		if w := &v.Windows[i]; w.IsFixed() {
			isOver = isOver && v.Standing(i).Used > w.Limit
		}
		if isOver {
			did.Denial = v.Denial(1)
		}
	}
	return false
}
