package quotaservice

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// pump takes up the results of swaps, lets workers take turns, and sends what is ready to the store, until there is
// nothing left to do. It calls streams and the store while mu is free. One goroutine pumps
// at a time, and the others leave it to that.
func (s *Service) pump() {
	s.mu.Lock()
	if s.core.pumping {
		s.mu.Unlock()
		return
	}
	s.core.pumping = true
	for {
		w, ok := s.core.nextWork(s.landed.drain())
		if !ok {
			break
		}
		s.mu.Unlock()
		s.do(&w)
		s.mu.Lock()
	}
	s.core.pumping = false
	s.mu.Unlock()
}

// do does what takes no lock.
func (s *Service) do(w *work) {
	for _, n := range w.notify {
		n.stream.onAnswers()
	}
	if len(w.ready) > 0 {
		s.sendSwaps(w.ready, w.swaps)
	}
}

// sendSwaps sends the swaps of the keys that are ready.
func (s *Service) sendSwaps(ready []*key, swaps []swapstore.Swap) {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.StoreTimeout)
	var left atomic.Int64
	left.Store(int64(len(ready)))
	s.landed.setPumpComes(true)
	s.o.Store.Swap(ctx, swaps, func(i int, r swapstore.Result) {
		if s.landed.add(landing{ready[i], r}) {
			go s.pump()
		}
		if left.Add(-1) == 0 {
			cancel()
		}
	})
	s.landed.setPumpComes(false)
}

// landed are results of the store that no pump has taken up yet. Of each, exactly one goroutine sees to it that a pump
// does:
//
//	the result comes          who sees to it
//	while Store.Swap runs     the pump that has called it: it drains once that has returned
//	later, to an empty list   the goroutine that adds it: it starts a pump
//	later, to others          who sees to the first of these: one pump drains all
//
// A pump that was started waits for mu, or leaves it to the one that pumps, which drains before it ends.
type landed struct {
	mu        sync.Mutex
	all       []landing
	spare     []landing // memory that is used again
	pumpComes bool      // a pump takes them up once Store.Swap has returned
}

type landing struct {
	key    *key
	result swapstore.Result
}

// add adds a result, and reports whether the caller must start a pump for it.
func (l *landed) add(r landing) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
	return len(l.all) == 1 && !l.pumpComes
}

func (l *landed) setPumpComes(comes bool) {
	l.mu.Lock()
	l.pumpComes = comes
	l.mu.Unlock()
}

// drain takes all results. The caller has them until it drains again.
func (l *landed) drain() []landing {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.spare)
	l.all, l.spare = l.spare[:0], l.all
	return l.spare
}

// submit lets an operation wait for its key's turn, and sends it to the store.
func (s *Service) submit(o *operation) {
	s.mu.Lock()
	s.core.keys.add(o)
	s.mu.Unlock()
	s.pump()
}
