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
	s.landed.promisePump() // the one that runs here, once Swap has returned
	s.o.Store.Swap(ctx, swaps, func(i int, r swapstore.Result) {
		if s.landed.add(landing{ready[i], r}) {
			go s.pump()
		}
		if left.Add(-1) == 0 {
			cancel()
		}
	})
}

// landed are results of the store that no pump has taken up yet. Each result is taken up, because of these:
//
//   - While pumpComes, some goroutine goes on to pump: the one that has called Store.Swap, or one that add has had
//     started. It drains, or finds another one in pump, which drains before it ends.
//   - A result that comes while pumpComes is not set has its goroutine start a pump.
//   - Only drain ends pumpComes, and it takes all results at the same moment.
type landed struct {
	mu        sync.Mutex
	all       []landing
	spare     []landing // memory that is used again
	pumpComes bool
}

type landing struct {
	key    *key
	result swapstore.Result
}

// add adds a result, and reports whether the caller must start a pump for it.
func (l *landed) add(r landing) (mustPump bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
	mustPump = !l.pumpComes
	l.pumpComes = true
	return mustPump
}

// promisePump has add start no pump, because the caller pumps.
func (l *landed) promisePump() {
	l.mu.Lock()
	l.pumpComes = true
	l.mu.Unlock()
}

// drain takes all results. The caller has them until it drains again.
func (l *landed) drain() []landing {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pumpComes = false
	clear(l.spare)
	l.all, l.spare = l.spare[:0], l.all
	return l.spare
}

// submit lets an operation wait for its key's turn, and sends it to the store.
func (s *Service) submit(o *keyOperation) {
	s.mu.Lock()
	s.core.keys.add(o)
	s.mu.Unlock()
	s.pump()
}
