package quota

import (
	"container/heap"
	"context"
	"runtime"
	"sync"
)

// gate lets as many streams at a time as there are processors have a piece of their
// messages decided. The next is the one that has had the fewest bytes, so that a stream
// which asks little waits for hardly one piece, whatever the others ask.
type gate struct {
	mu      sync.Mutex
	free    int
	had     int64 // of the stream that entered last, when it did
	waiting fewestFirst
}

func newGate() gate { return gate{free: runtime.GOMAXPROCS(0)} }

// pass is a stream's place at the gate.
type pass struct {
	had  int64         // bytes; one that was idle counts as if it had had as many as the last one
	next chan struct{} // it is its turn
	at   int           // index among those that wait, -1 = it does not
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
	heap.Push(&g.waiting, p)
	g.mu.Unlock()
	select {
	case <-p.next:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	waits := p.at >= 0
	if waits {
		heap.Remove(&g.waiting, p.at)
	}
	g.mu.Unlock()
	if !waits { // the turn has come meanwhile
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
	next := heap.Pop(&g.waiting).(*pass)
	g.had = next.had
	next.next <- struct{}{}
}

// fewestFirst is a heap.Interface.
type fewestFirst []*pass

func (f fewestFirst) Len() int           { return len(f) }
func (f fewestFirst) Less(i, j int) bool { return f[i].had < f[j].had }
func (f fewestFirst) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].at, f[j].at = i, j
}
func (f *fewestFirst) Push(x any) {
	p := x.(*pass)
	p.at = len(*f)
	*f = append(*f, p)
}
func (f *fewestFirst) Pop() any {
	last := len(*f) - 1
	p := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	p.at = -1
	return p
}
