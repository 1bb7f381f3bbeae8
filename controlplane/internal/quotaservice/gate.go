package quotaservice

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
)

// gate lets as many streams at a time as there are processors have a piece of their
// messages decided. The next is the one that has had the fewest bytes, so that a stream
// which asks little waits for hardly one piece, whatever the others ask.
type gate struct {
	mu      sync.Mutex
	free    int
	had     int64   // of the stream that entered last, when it did
	waiting []*pass // the next first
}

func newGate() gate { return gate{free: runtime.GOMAXPROCS(0)} }

// pass is a stream's place at the gate.
type pass struct {
	had  int64         // bytes; one that was idle counts as if it had had as many as the last one
	next chan struct{} // it is its turn
}

func newPass() pass { return pass{next: make(chan struct{}, 1)} }

// enter waits for the turn. If ctx ends before, there is none to leave.
func (g *gate) enter(ctx context.Context, p *pass) error {
	g.mu.Lock()
	p.had = max(p.had, g.had)
	if g.free > 0 {
		g.free--
		g.had = p.had
		g.mu.Unlock()
		return nil
	}
	at, _ := slices.BinarySearchFunc(g.waiting, p.had+1, func(q *pass, had int64) int { return cmp.Compare(q.had, had) })
	g.waiting = slices.Insert(g.waiting, at, p)
	g.mu.Unlock()
	select {
	case <-p.next:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	at = slices.Index(g.waiting, p)
	if at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	}
	g.mu.Unlock()
	if at < 0 { // the turn has come meanwhile
		<-p.next
		g.leave(p, 0)
	}
	return ctx.Err()
}

// leave ends the turn, in which so many bytes were decided.
func (g *gate) leave(p *pass, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.had += int64(n)
	if len(g.waiting) == 0 {
		g.free++
		return
	}
	next := g.waiting[0]
	g.waiting[0], g.waiting = nil, g.waiting[1:]
	g.had = next.had
	next.next <- struct{}{}
}
