package quotaservice

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// pendingAsk has not begun.
type pendingAsk struct {
	quota.Ask
	askedNs int64
	isBusy  bool // the worker asks too often
}

// begunAsk is an ask whose turn has come: all its parts are granted or none, those in shadow aside. Each of its steps
// follows once the operations that the one before has started are done:
//
//	startHits
//	startLastHits
//	conclude
//	├─ keepDenials  if all are granted
//	│  confirm
//	│  ├─ answer
//	│  └─ undoHits  if the stream has closed meanwhile
//	│     answer
//	└─ undoHits     if not
//	   answer
type begunAsk struct {
	steps
	worker  *worker
	id      uint32
	weight  int   // its parts, and the windows that their grants tell of: see worker.underWay
	askedNs int64 // when it came
	parts   []askPart
	result  quota.Outcome // once it is decided
}

// askPart is one part of a begunAsk. Its key carries out the hit, and then the undo or the keeping, if there is one. No
// part has both, because a hit that is denied has taken nothing.
type askPart struct {
	part    *quota.Part
	counter *Counter
	hit     recordOperation // an action.Hit, Hold or Take, see action.Terms.ActionFor. It is made when it starts
	// undo gives back the units that the hit has taken, if nobody gets them; nil = it has taken none, or they are granted.
	undo *recordOperation
	// keeping keeps the denial of a hit in shadow, if the ask is granted; nil = there is nothing to keep.
	keeping *recordOperation
}

// last returns the part's last operation of which it is known what has come of it. isUnsure says that the one after it
// has failed: the store may have carried it out or not.
func (p *askPart) last() (o *recordOperation, isUnsure bool) {
	after := cmp.Or(p.undo, p.keeping)
	switch {
	case after == nil:
		return &p.hit, false
	case after.outcome.Err != nil:
		return &p.hit, true
	}
	return after, false
}

// begin begins an ask: its hits wait for their keys.
func (w *worker) begin(ask *pendingAsk) {
	a := &begunAsk{worker: w, id: ask.ID, askedNs: ask.askedNs}
	a.steps = steps{keys: &w.core.keys}
	windows, isKnown := 0, false
	if !ask.isBusy {
		windows, isKnown = a.makeParts(ask.Parts)
	}
	a.weight = len(ask.Parts) + windows
	w.underWay += a.weight
	w.begunAsks++
	w.core.unfinished++
	switch {
	case ask.isBusy:
		a.result = quota.Busy
		a.answer()
	case !isKnown:
		a.result = quota.Unknown
		a.answer()
	default:
		a.startHits()
	}
}

// makeParts makes the parts, and returns how many windows they have. ok says that the worker has defined all of them.
func (a *begunAsk) makeParts(parts []quota.Part) (windows int, ok bool) {
	w := a.worker
	a.parts = make([]askPart, len(parts))
	for i := range parts {
		p := &parts[i]
		c := w.definitions.use(p.Definition)
		if c == nil {
			return 0, false
		}
		windows += len(c.terms.Windows)
		a.parts[i] = askPart{part: p, counter: c}
	}
	return windows, true
}

// operationDone is called for each operation that is done.
func (a *begunAsk) operationDone(o *recordOperation) {
	if errors.Is(o.outcome.Err, balance.ErrWindows) {
		a.worker.logRefusal("ask refused", o.outcome.Err)
	}
	a.done()
}

// startHits starts the hits, but for those that take last: see action.Terms.TakesLast.
func (a *begunAsk) startHits() {
	hits := make([]operation, 0, len(a.parts))
	for i := range a.parts {
		if p := &a.parts[i]; !p.counter.terms.TakesLast() {
			hits = append(hits, a.makeHit(p, p.counter.terms.ActionFor(p.part)))
		}
	}
	a.start(hits, a.startLastHits)
}

// makeHit makes the hit of a part.
func (a *begunAsk) makeHit(p *askPart, what action.Action) *recordOperation {
	p.hit = p.counter.operation(what, a.worker.hasher, &p.part.Key, a)
	return &p.hit
}

// startLastHits starts the other ones. If a part is denied already, or has failed, they take nothing.
func (a *begunAsk) startLastHits() {
	isRefused := a.judgeParts() != quota.Granted
	var hits []operation
	for i := range a.parts {
		if p := &a.parts[i]; p.counter.terms.TakesLast() {
			hits = append(hits, a.makeHit(p, &action.Hit{Part: p.part, IsRefused: isRefused}))
		}
	}
	a.start(hits, a.conclude)
}

// conclude goes on by the result of all parts.
func (a *begunAsk) conclude() {
	a.result = a.judgeParts()
	if a.result == quota.Granted {
		a.keepDenials()
	} else {
		a.undoHits()
	}
}

// judgeParts returns the result of all parts whose hits are done. The first part that has failed decides, whatever the
// others are.
func (a *begunAsk) judgeParts() quota.Outcome {
	if a.worker.closed {
		return quota.Unavailable
	}
	result := quota.Granted
	for i := range a.parts {
		p := &a.parts[i]
		switch out := p.hit.outcome; {
		case p.part.Shadow || out == nil:
		case errors.Is(out.Err, balance.ErrHolders):
			return quota.Busy
		case out.Err != nil:
			return quota.Unavailable
		case out.Denied:
			result = quota.Denied
		}
	}
	return result
}

// keepDenials keeps the denials of the parts in shadow, where denied asks count or block their key.
// No other part of a granted ask is denied.
func (a *begunAsk) keepDenials() {
	var operations []operation
	for i := range a.parts {
		p := &a.parts[i]
		p.keeping = p.hit.followedBy(p.counter.terms.KeepDenial(p.part, p.hit.outcome))
		if p.keeping != nil {
			operations = append(operations, p.keeping)
		}
	}
	a.start(operations, a.confirm)
}

// confirm answers a granted ask, unless nobody takes what was granted: the stream may have closed meanwhile.
func (a *begunAsk) confirm() {
	if a.worker.closed {
		a.result = quota.Unavailable
		a.undoHits()
		return
	}
	a.answer()
}

// undoHits undoes what the hits have taken, because other parts are refused or nobody takes it. What keepDenials has
// counted stays.
func (a *begunAsk) undoHits() {
	var undos []operation
	for i := range a.parts {
		p := &a.parts[i]
		p.undo = p.hit.undo()
		if p.undo != nil {
			undos = append(undos, p.undo)
		}
	}
	a.start(undos, a.answer)
}

// answer answers the ask, unless its stream has closed.
func (a *begunAsk) answer() {
	w := a.worker
	w.begunAsks--
	a.measure()
	if !w.closed {
		w.send(&quota.AskResult{ID: a.id, Outcome: a.result, Grants: a.grants()}, a.weight)
	}
	w.core.noteFinished()
}

// grants are what the parts got, none if that is not said of each. They are in memory that the next answer uses again.
func (a *begunAsk) grants() []quota.Grant {
	if a.result == quota.Unknown || a.result == quota.Busy {
		return nil
	}
	c := a.worker.core
	c.grantBuffer = c.grantBuffer[:0]
	for i := range a.parts {
		c.grantBuffer = append(c.grantBuffer, a.grant(&a.parts[i]))
	}
	return c.grantBuffer
}

// grant is what the hit of a part got, and how its key stands since its last operation.
func (a *begunAsk) grant(p *askPart) quota.Grant {
	hit := p.hit.outcome
	if hit.Err != nil {
		return failedGrant(hit)
	}
	last, isUnsure := p.last()
	got := quota.Grant{
		Denied: hit.Denied, WaitNs: last.outcome.WaitNs, HeldBack: last.outcome.HeldBack,
		Blocked: hit.Denied && last.outcome.Blocked, Noted: last.outcome.Noted && !isUnsure, Windows: a.standings(last),
	}
	if a.result == quota.Granted {
		a.handOver(&got, &p.hit)
	}
	return got
}

// standings are those after the last operation of a part. If the ask is not granted, the hit of another part of its key
// may have been undone since: then they are those after the last undo. One swap undoes all hits of a key, in the order
// of the parts.
//
// For example, two rules ask for the same key, of which 5 units are left, for 2 and for 4. The first part gets its 2,
// so the second one is denied, because 3 are left. The 2 are undone, so both parts are answered that 5 are left.
func (a *begunAsk) standings(last *recordOperation) []quota.Standing {
	if a.result == quota.Granted {
		return last.outcome.Standings
	}
	for i := range slices.Backward(a.parts) {
		if undo := a.parts[i].undo; undo.tellsOf(last) {
			return undo.outcome.Standings
		}
	}
	return last.outcome.Standings
}

// handOver grants what a part of a granted ask has taken, and remembers it for its return.
func (a *begunAsk) handOver(got *quota.Grant, o *recordOperation) {
	taken := &o.outcome.Taken
	switch {
	case taken.Units > 0:
		got.Units, got.Leased = taken.Units, taken.Counted.IsLeased()
		got.ValidNs = taken.ValidNs
		if o.Terms.HoldLimit == nil {
			got.Number = a.worker.returnables.add(returnable{
				terms: o.Terms, windows: o.Windows, storeKey: o.storeKey, counted: taken.Counted, units: taken.Units,
				atNs: a.worker.core.clock.NowNs(),
			})
		}
		a.worker.core.metrics.unitsGranted.Add(uint64(got.Units))
	case o.Terms.HasBlock: // a request that costs nothing has asked whether the key is blocked
		got.ValidNs = taken.ValidNs
	}
}

// failedGrant is for a key that could not be decided. Denied is for proxies that do not know
// Failed.
func failedGrant(hit *action.Outcome) quota.Grant {
	got := quota.Grant{Failed: true, Denied: true, WaitNs: second}
	if errors.Is(hit.Err, action.ErrStarting) {
		got.Starting, got.Noted = true, true
		got.WaitNs = hit.StartsInNs
	}
	return got
}

// measure counts the answer.
func (a *begunAsk) measure() {
	c := a.worker.core
	isStarting := a.result == quota.Unavailable && slices.ContainsFunc(a.parts, func(p askPart) bool {
		return errors.Is(p.hit.outcome.Err, action.ErrStarting)
	})
	c.metrics.countAnswer(a.result, isStarting, c.clock.NowNs()-a.askedNs)
	for i := range a.parts {
		if p := &a.parts[i]; p.undo != nil {
			c.metrics.unitsLost.Add(p.hit.lostBy(p.undo))
		}
	}
}

// returnable is a grant whose units may come back: what their return needs to know of it.
type returnable struct {
	terms    *action.Terms
	windows  balance.KeyWindows
	storeKey [16]byte
	counted  balance.HowCounted
	units    uint32 // that may come back
	atNs     int64  // by the service's clock
}

// returnables are a stream's newest grants, by number.
type returnables struct {
	list   []returnable // the oldest first
	number uint32       // of the newest
}

// rememberNs is how long a grant is remembered for returns: a lease and the time
// after which it counts as idle, and some.
const rememberNs = 30 * second

// add remembers a grant, and forgets those that are too old or too many. It returns its number.
func (rs *returnables) add(g returnable) (number uint32) {
	for len(rs.list) >= quota.MaxReturnable || len(rs.list) > 0 && g.atNs-rs.list[0].atNs > rememberNs {
		rs.list[0] = returnable{}
		rs.list = rs.list[1:]
	}
	rs.list = append(rs.list, g)
	rs.number++
	return rs.number
}

// takeReturn starts an operation that uncounts what the proxy returns.
func (w *worker) takeReturn(r quota.Return) {
	c := w.core
	g, units := w.returnables.take(r)
	if g == nil {
		c.metrics.unitsLost.Add(uint64(r.Units))
		return
	}
	if units == 0 {
		return
	}
	c.unfinished++
	c.keys.add(&recordOperation{
		Operation: action.Operation{
			Terms: g.terms, Windows: g.windows, Action: &action.Return{Units: units, Counted: g.counted},
		},
		onKey: onKey{storeKey: g.storeKey, domain: w.domain.name}, owner: returned{c, units},
	})
}

// take returns the grant that a return names, and how many of its units go back: all its returns together give back at
// most what it gave. nil = the grant is not remembered.
func (rs *returnables) take(r quota.Return) (g *returnable, units uint32) {
	age := rs.number - r.Grant // newest = 0
	if r.Grant == 0 || r.Grant > rs.number || int64(age) >= int64(len(rs.list)) {
		return nil, 0
	}
	g = &rs.list[len(rs.list)-1-int(age)]
	units = min(r.Units, g.units)
	g.units -= units
	return g, units
}

// returned owns the operation of a return. It measures how many units could still be uncounted. Only Drain waits for
// it.
type returned struct {
	core  *core
	units uint32
}

func (r returned) operationDone(o *recordOperation) {
	r.core.metrics.unitsReturned.Add(uint64(o.outcome.Uncounted))
	r.core.metrics.unitsLost.Add(uint64(r.units - o.outcome.Uncounted))
	r.core.noteFinished()
}

// leased is how many units leases have that have not ended at localNs.
func (rs *returnables) leased(localNs int64) (units uint64) {
	for i := range rs.list {
		g := &rs.list[i]
		if g.atNs+g.counted.SpendByNs-g.counted.AtNs > localNs {
			units += uint64(g.units)
		}
	}
	return units
}
