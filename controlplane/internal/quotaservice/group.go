package quotaservice

import (
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// group is one ask: all its parts are granted or none, those in shadow aside. Each step starts operations, and
// another one follows when they are done:
//
//	startHits ▶ startLastHits ▶ conclude ─ granted ─▶ keepDenials ▶ confirm ─ the stream is open ─▶ answer
//	                                     │                                  └ it has closed ─▶ undo ▶ answer
//	                                     └ not granted ─▶ undo ▶ answer
type group struct {
	stream  *Stream
	id      uint32
	size    int   // how many parts the ask has
	askedNs int64 // when it came
	parts   []askPart
	left    int           // operations that are not done
	next    func(*group)  // the step that follows then
	result  quota.Outcome // once it is decided
}

// askPart is one part of a group. Its key decides it first; from the result of all parts follows at most one
// more operation.
type askPart struct {
	hit     action.Hit
	hitting operation  // carries the hit out
	kept    *operation // keepDenial, if it was denied in shadow, and the ask is granted
	undone  *operation // undo, if it was granted units, but the ask is not granted
}

// failed reports whether its key could not decide it.
func (p *askPart) failed() bool { return p.hitting.Err != nil }

func (p *askPart) denied() bool { return !p.failed() && p.hitting.Denied }

// last is the operation whose outcome says how the key stands when the ask is answered.
func (p *askPart) last() *operation {
	switch {
	case p.kept != nil:
		return p.kept
	case p.undone != nil:
		return p.undone
	}
	return &p.hitting
}

// makeParts makes the operation of each part, and reports whether the stream has defined all of them.
func (g *group) makeParts(parts []quota.Part) (ok bool) {
	st := g.stream
	g.parts = make([]askPart, len(parts))
	for i := range parts {
		p := &parts[i]
		d := st.definitions.use(p.Definition)
		if d == nil {
			return false
		}
		part := &g.parts[i]
		part.hit.Part = *p
		part.hitting = d.operation(&part.hit, st.hasher, st.domain.name, p.Key, g)
	}
	return true
}

// operationDone is called for each operation that is done.
func (g *group) operationDone(o *operation) {
	if errors.Is(o.Err, record.ErrWindows) {
		g.stream.logRefusal("ask refused", o.Err)
	}
	g.left--
	if g.left == 0 {
		g.next(g)
	}
}

// then has a step follow once all operations are done that were started so far. If none was, it follows at once.
func (g *group) then(step func(*group)) {
	g.next = step
	if g.left == 0 {
		step(g)
	}
}

// startHits starts the hits, but for those that take last: see action.Definition.TakesLast.
func (g *group) startHits() {
	for i := range g.parts {
		if o := &g.parts[i].hitting; !o.TakesLast() {
			g.start(o)
		}
	}
	g.then((*group).startLastHits)
}

// startLastHits starts the other ones. If a part is denied already, or has failed, they take nothing.
func (g *group) startLastHits() {
	isRefused := g.outcome() != quota.Granted
	for i := range g.parts {
		if p := &g.parts[i]; p.hitting.TakesLast() {
			p.hit.TakesNothing = isRefused
			g.start(&p.hitting)
		}
	}
	g.then((*group).conclude)
}

// conclude goes on by the result of all parts.
func (g *group) conclude() {
	g.result = g.outcome()
	if g.result == quota.Granted {
		g.keepDenials()
	} else {
		g.undo()
	}
}

// outcome is the result of the parts that are decided.
func (g *group) outcome() quota.Outcome {
	if g.stream.closed {
		return quota.Unavailable
	}
	result := quota.Granted
	for i := range g.parts {
		p := &g.parts[i]
		if p.hit.Part.Shadow {
			continue
		}
		switch {
		case errors.Is(p.hitting.Err, balance.ErrHolders):
			return quota.Busy
		case p.failed():
			return quota.Unavailable
		case p.denied():
			result = quota.Denied
		}
	}
	return result
}

// keepDenials keeps the denials of the parts in shadow, where denied asks count or block their key.
// No other part of a granted ask is denied.
func (g *group) keepDenials() {
	for i := range g.parts {
		p := &g.parts[i]
		if keep := p.hitting.KeepDenial(); keep != nil {
			p.kept = p.hitting.followedBy(keep)
			g.start(p.kept)
		}
	}
	g.then((*group).confirm)
}

// confirm answers a granted ask, unless nobody takes what was granted: the stream may have closed meanwhile.
func (g *group) confirm() {
	if g.stream.closed {
		g.result = quota.Unavailable
		g.undo()
		return
	}
	g.answer()
}

// undo uncounts what parts were granted, because others were not or nobody takes it.
func (g *group) undo() {
	for i := range g.parts {
		p := &g.parts[i]
		if undo := p.hitting.Undo(); undo != nil {
			p.undone = p.hitting.followedBy(undo)
			g.start(p.undone)
		}
	}
	g.then((*group).answer)
}

// start lets an operation wait for its key.
func (g *group) start(o *operation) {
	g.left++
	g.stream.service.keys.add(o)
}

// answer answers the ask, unless its stream has closed.
func (g *group) answer() {
	st := g.stream
	s := st.service
	st.open--
	g.measure()
	if !st.closed {
		a := quota.AskResult{ID: g.id, Outcome: g.result}
		if g.result != quota.Granted {
			g.restate()
		}
		if g.result == quota.Granted || g.result == quota.Denied || g.result == quota.Unavailable {
			for i := range g.parts {
				s.grants = append(s.grants, g.grant(&g.parts[i]))
			}
			a.Grants = s.grants
		}
		st.send(&a, g.size)
		s.grants = s.grants[:0]
	}
	s.endDrain()
}

// measure counts the answer.
func (g *group) measure() {
	s := g.stream.service
	became := g.result
	isStarting := func(p askPart) bool { return errors.Is(p.hitting.Err, action.ErrStarting) }
	if became == quota.Unavailable && slices.ContainsFunc(g.parts, isStarting) {
		became = unavailableStarting
	}
	s.metrics.countAnswer(became, s.o.Clock.NowNs()-g.askedNs)
	for i := range g.parts { // lost is what an undo could not uncount; a later report corrects holds
		p := &g.parts[i]
		if p.undone != nil && p.undone.HoldLimit == nil {
			s.metrics.lost.Add(uint64(p.hitting.Taken.Units - p.undone.Uncounted))
		}
	}
}

// restate gives a denied part the standings of its key after other parts of that key were undone:
// those that it was denied with count units which nobody got.
//
// An example: two rules ask for the same key, of which 5 units are left, for 2 and for 4. The first
// part gets its 2, so the second one is denied, when 3 are left. The 2 are undone, so both parts are
// answered that 5 are left.
func (g *group) restate() {
	for i := range g.parts {
		if !g.parts[i].denied() {
			continue
		}
		denied := &g.parts[i].hitting
		for j := range g.parts {
			o := g.parts[j].undone
			isUndone := o != nil && o.Err == nil
			if isUndone && o.storeKey == denied.storeKey && slices.Equal(o.Shifted, denied.Shifted) {
				denied.Standings = o.Standings
			}
		}
	}
}

// grant is what one part got. If the ask is granted, no part is undone, and a part whose denial is kept has taken no
// units. So if a part has taken units, its last operation is the hit that took them.
func (g *group) grant(part *askPart) quota.Grant {
	if part.failed() {
		return failedGrant(&part.hitting)
	}
	o, isDenied := part.last(), part.denied()
	got := quota.Grant{
		Denied: isDenied, WaitNs: o.WaitNs, HeldBack: o.HeldBack, Blocked: isDenied && o.Blocked,
		Noted: o.Noted && o.Err == nil, Windows: o.Standings,
	}
	switch {
	case g.result != quota.Granted:
		return got
	case o.Taken.Units == 0:
		if o.HasBlock { // a request that costs nothing has asked whether the key is blocked
			got.ValidNs = o.Taken.ValidNs
		}
		return got
	}
	got.Units, got.Leased = o.Taken.Units, o.Taken.Leased
	got.ValidNs = o.Taken.ValidNs
	if o.HoldLimit == nil {
		got.Number = g.stream.remember(o)
	}
	g.stream.service.metrics.granted.Add(uint64(got.Units))
	return got
}

// failedGrant is for a key that could not be decided. Denied is for proxies that do not know
// Failed.
func failedGrant(o *operation) quota.Grant {
	p := quota.Grant{Failed: true, Denied: true, WaitNs: second}
	if errors.Is(o.Err, action.ErrStarting) {
		p.Starting, p.Noted = true, true
		p.WaitNs = o.WaitNs
	}
	return p
}
