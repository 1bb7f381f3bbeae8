package quotaservice

import (
	"errors"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
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
	steps[*begunAsk]
	worker  *worker
	id      uint32
	size    int   // its parts, and the windows that their grants tell of: see worker.underWay
	askedNs int64 // when it came
	parts   []askPart
	result  quota.Outcome // once it is decided
}

// askPart is one part of a begunAsk. Its key decides it first; from the result of all parts follows at most one
// more operation.
type askPart struct {
	hit    action.Hit
	first  keyOperation  // carries the hit out
	kept   *keyOperation // keepDenial, if it was denied in shadow, and the ask is granted
	undone *keyOperation // undo, if it was granted units, but the ask is not granted
}

// failed reports whether its key could not decide it.
func (p *askPart) failed() bool { return p.first.Outcome.Err != nil }

func (p *askPart) denied() bool { return !p.failed() && p.first.Outcome.Denied }

// makeParts makes the operation of each part, and returns how many windows they have. ok says that the worker has
// defined all of them.
func (a *begunAsk) makeParts(parts []quota.Part) (windows int, ok bool) {
	w := a.worker
	a.parts = make([]askPart, len(parts))
	for i := range parts {
		p := &parts[i]
		c := w.definitions.use(p.Definition)
		if c == nil {
			return 0, false
		}
		part := &a.parts[i]
		part.hit.Part = *p
		windows += len(c.terms.Windows)
		part.first = c.operation(&part.hit, w.hasher, p.Key, a)
	}
	return windows, true
}

// operationDone is called for each operation that is done.
func (a *begunAsk) operationDone(o *keyOperation) {
	if errors.Is(o.Outcome.Err, record.ErrWindows) {
		a.worker.logRefusal("ask refused", o.Outcome.Err)
	}
	a.done()
}

// startHits starts the hits, but for those that take last: see action.Terms.TakesLast.
func (a *begunAsk) startHits() {
	for i := range a.parts {
		if o := &a.parts[i].first; !o.Terms.TakesLast() {
			a.start(o)
		}
	}
	a.then((*begunAsk).startLastHits)
}

// startLastHits starts the other ones. If a part is denied already, or has failed, they take nothing.
func (a *begunAsk) startLastHits() {
	isRefused := a.judgeParts() != quota.Granted
	for i := range a.parts {
		if p := &a.parts[i]; p.first.Terms.TakesLast() {
			p.hit.TakesNothing = isRefused
			a.start(&p.first)
		}
	}
	a.then((*begunAsk).conclude)
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

// judgeParts returns the result of the parts whose hits are done.
func (a *begunAsk) judgeParts() quota.Outcome {
	if a.worker.closed {
		return quota.Unavailable
	}
	result := quota.Granted
	for i := range a.parts {
		p := &a.parts[i]
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
func (a *begunAsk) keepDenials() {
	for i := range a.parts {
		p := &a.parts[i]
		if keep := p.first.NewKeepDenial(); keep != nil {
			p.kept = p.first.followedBy(keep)
			a.start(p.kept)
		}
	}
	a.then((*begunAsk).confirm)
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

// undoHits uncounts what parts were granted, because others were not or nobody takes it.
func (a *begunAsk) undoHits() {
	for i := range a.parts {
		p := &a.parts[i]
		if undo := p.first.NewUndo(); undo != nil {
			p.undone = p.first.followedBy(undo)
			a.start(p.undone)
		}
	}
	a.then((*begunAsk).answer)
}
