package quotaservice

import (
	"errors"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// group is one ask: all its parts are granted or none, those in shadow aside. These are its steps:
//
//	startHits ▶ startLastHits ▶ conclude ─ granted ─▶ keepDenials ▶ confirm ─ the stream is open ─▶ answer
//	                                     │                                  └ it has closed ─▶ undo ▶ answer
//	                                     └ not granted ─▶ undo ▶ answer
type group struct {
	steps[*group]
	worker  *worker
	id      uint32
	size    int   // its parts, and the windows that their grants tell of: see worker.underWay
	askedNs int64 // when it came
	parts   []askPart
	result  quota.Outcome // once it is decided
}

// askPart is one part of a group. Its key decides it first; from the result of all parts follows at most one
// more operation.
type askPart struct {
	hit    action.Hit
	first  operation  // carries the hit out
	kept   *operation // keepDenial, if it was denied in shadow, and the ask is granted
	undone *operation // undo, if it was granted units, but the ask is not granted
}

// failed reports whether its key could not decide it.
func (p *askPart) failed() bool { return p.first.Outcome.Err != nil }

func (p *askPart) denied() bool { return !p.failed() && p.first.Outcome.Denied }

// makeParts makes the operation of each part, and returns how many windows they have. ok says that the worker has
// defined all of them.
func (g *group) makeParts(parts []quota.Part) (windows int, ok bool) {
	w := g.worker
	g.parts = make([]askPart, len(parts))
	for i := range parts {
		p := &parts[i]
		d := w.definitions.use(p.Definition)
		if d == nil {
			return 0, false
		}
		part := &g.parts[i]
		part.hit.Part = *p
		windows += len(d.Windows)
		part.first = d.operation(&part.hit, w.hasher, w.domain.name, p.Key, g)
	}
	return windows, true
}

// operationDone is called for each operation that is done.
func (g *group) operationDone(o *operation) {
	if errors.Is(o.Outcome.Err, record.ErrWindows) {
		g.worker.logRefusal("ask refused", o.Outcome.Err)
	}
	g.done()
}

// startHits starts the hits, but for those that take last: see action.Definition.TakesLast.
func (g *group) startHits() {
	for i := range g.parts {
		if o := &g.parts[i].first; !o.Definition.TakesLast() {
			g.start(o)
		}
	}
	g.then((*group).startLastHits)
}

// startLastHits starts the other ones. If a part is denied already, or has failed, they take nothing.
func (g *group) startLastHits() {
	isRefused := g.judgeParts() != quota.Granted
	for i := range g.parts {
		if p := &g.parts[i]; p.first.Definition.TakesLast() {
			p.hit.TakesNothing = isRefused
			g.start(&p.first)
		}
	}
	g.then((*group).conclude)
}

// conclude goes on by the result of all parts.
func (g *group) conclude() {
	g.result = g.judgeParts()
	if g.result == quota.Granted {
		g.keepDenials()
	} else {
		g.undo()
	}
}

// judgeParts returns the result of the parts whose hits are done.
func (g *group) judgeParts() quota.Outcome {
	if g.worker.closed {
		return quota.Unavailable
	}
	result := quota.Granted
	for i := range g.parts {
		p := &g.parts[i]
		if p.hit.Part.Shadow {
			continue
		}
		switch {
		case errors.Is(p.first.Outcome.Err, balance.ErrHolders):
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
		if keep := p.first.KeepDenial(); keep != nil {
			p.kept = p.first.followedBy(keep)
			g.start(p.kept)
		}
	}
	g.then((*group).confirm)
}

// confirm answers a granted ask, unless nobody takes what was granted: the stream may have closed meanwhile.
func (g *group) confirm() {
	if g.worker.closed {
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
		if undo := p.first.Undo(); undo != nil {
			p.undone = p.first.followedBy(undo)
			g.start(p.undone)
		}
	}
	g.then((*group).answer)
}
