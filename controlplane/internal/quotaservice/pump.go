package quotaservice

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

const (
	// maxSwaps is how many swaps may be under way to the store. More wait here, because here
	// streams take turns.
	maxSwaps = 512
	// maxBatch is how many of them are decided and leave together.
	maxBatch = 64
)

// notifyLater has pump call the stream's onAnswers, so that its transport looks for answers.
func (s *Service) notifyLater(st *Stream) {
	if !st.notified {
		st.notified = true
		s.toNotify = append(s.toNotify, st)
	}
}

// pump takes up the results of swaps, lets streams take turns, and sends what is ready to the store, until there is
// nothing left to do. It locks the service, but not while it calls streams and the store. One goroutine pumps
// at a time, and the others leave it to that.
func (s *Service) pump() {
	s.mu.Lock()
	if s.pumping {
		s.mu.Unlock()
		return
	}
	s.pumping = true
	for {
		w, ok := s.nextWork()
		if !ok {
			break
		}
		s.mu.Unlock()
		s.do(&w)
		s.mu.Lock()
	}
	s.pumping = false
	s.mu.Unlock()
}

// work is what pump does without the lock.
type work struct {
	streams []*Stream // look for answers
	ready   []*key    // whose swaps go to the store
	swaps   []swapstore.Swap
}

// nextWork does what needs the lock; ok says that there was something, so that there may be more.
func (s *Service) nextWork() (w work, ok bool) {
	hadResults := s.takeResults()
	turns := s.prepareSwaps(&w)
	w.streams = s.toNotify
	s.toNotify = nil
	for _, st := range w.streams {
		st.notified = false
	}
	return w, hadResults || turns > 0 || len(w.ready) > 0 || len(w.streams) > 0
}

func (s *Service) do(w *work) {
	for _, st := range w.streams {
		st.onAnswers()
	}
	if len(w.ready) > 0 {
		s.sendSwaps(w.ready, w.swaps)
	}
}

// takeResults takes up the results of swaps that have come, and reports whether there were some.
func (s *Service) takeResults() bool {
	came := s.landed.drain(s.spare)
	for i := range came {
		s.takeResult(came[i].key, came[i].result)
	}
	clear(came)
	s.spare = came[:0]
	return len(came) > 0
}

// prepareSwaps prepares the swaps of keys with operations, and then of what streams in turn ask for: as much as the
// store may have under way, but no more than maxBatch keys and turns, because meanwhile no stream gets
// the lock.
func (s *Service) prepareSwaps(w *work) (turns int) {
	for len(w.ready) < maxBatch && s.swapsUnderWay < maxSwaps {
		k := s.keys.nextReady()
		if k == nil {
			if turns < maxBatch && s.takeTurn() {
				turns++
				continue
			}
			break
		}
		s.swapsUnderWay++
		localNs := s.o.Clock.NowNs()
		w.ready = append(w.ready, k)
		w.swaps = append(w.swaps, k.prepare(localNs, s.storeClock.storeNs(localNs)))
	}
	return turns
}

// takeTurn lets the next stream begin some of its asks.
func (s *Service) takeTurn() bool {
	if len(s.turns) == 0 {
		return false
	}
	st := s.turns[0]
	s.turns = s.turns[1:]
	st.takeTurn()
	return true
}

// sendSwaps sends the swaps of the keys that are ready. Results that come before Store.Swap returns
// are for the pump that has called this. The first one that comes later starts a pump.
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

// landed are results of the store that pump has not taken up yet. They may come one by one, and
// are taken up together.
type landed struct {
	mu        sync.Mutex
	all       []landing
	pumpComes bool // a pump takes them up once Store.Swap has returned
}

type landing struct {
	key    *key
	result swapstore.Result
}

// add adds a result, and reports whether the caller must start a pump for it. One pump takes up all
// results that have come, so only the first needs one.
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

// drain swaps what has landed for an empty list.
func (l *landed) drain(empty []landing) []landing {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = empty
	return all
}

// takeResult takes up the result of a key's swap: its operations are done, or need another swap.
func (s *Service) takeResult(k *key, r swapstore.Result) {
	s.swapsUnderWay--
	s.metrics.countResult(r)
	s.logFailure(k, r)
	done, err := k.learnResult(r)
	if r.Outcome != swapstore.Failed {
		s.storeClock.note(k.sentNs, r.NowNs, k.isMisled(r, done))
	}
	if !done {
		s.keys.again(k)
		return
	}
	if errors.Is(err, record.ErrNewer) || errors.Is(err, record.ErrDamage) {
		s.metrics.mismatches.Add(1)
	}
	for _, o := range k.swap {
		if err != nil {
			o.Err = err
		}
		s.deliver(o, err == nil)
	}
	s.keys.rest(k)
}

func (s *Service) logFailure(k *key, r swapstore.Result) {
	switch {
	case errors.Is(r.Err, swapstore.ErrFull):
		s.log.Warn("a key is not counted: on_unavailable decides", "domain", k.domain, "error", r.Err)
	case r.Outcome == swapstore.Failed:
		s.logUnusable(r.Err)
	}
}

// deliver tells the owner of an operation that it is done, unless it has to be decided again
// later. isDecided says that its outcome holds: the store has its value.
func (s *Service) deliver(o *operation, isDecided bool) {
	if isDecided && o.Rebased {
		s.metrics.rebased.Add(1)
	}
	if isDecided && errors.Is(o.Err, record.ErrWindows) {
		s.metrics.crowded.Add(1)
	}
	if isDecided && o.AgainNs != 0 {
		s.later(o)
		return
	}
	o.owner.operationDone(o)
}

// later decides an operation again at againNs. A window that is about to end has ended then.
func (s *Service) later(o *operation) {
	s.o.Clock.AfterFunc(max(o.AgainNs-s.storeNow(), 0)+1, func() {
		s.mu.Lock()
		s.keys.add(o)
		s.mu.Unlock()
		s.pump()
	})
}
