package quotaservice

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/recordbytes"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// maxSwaps is how many swaps may be under way to the store. More wait here, because here
	// workers take turns.
	maxSwaps = 512
	// maxBatch is how many of them are decided and leave together.
	maxBatch = 64
)

// core is what Service.mu guards: the workers, and the keys for which they ask. Who locks mu is seen from the type:
//
//	functions of                          are called while mu is
//	Service, Stream                       free, and lock it where they need the core
//	core, worker, begunAsk, keys, key, …  locked, and never wait
//	landed, metrics, storeLog             either: what they have is guarded apart
//
// What may wait is done by pump: it takes work out of the core. So memory passes from one goroutine to another:
//
//	what            from                      to                        by
//	a message       who calls Receive         who has locked mu         Stream.accept
//	a call          who calls Count           who has locked mu         startCall
//	                who has locked mu         who calls Count, or none  closing call.ended
//	                                          if its context has ended
//	an operator's   who calls Operate, and back as a call               submit, and closing the waiter
//	operation
//	swaps           who has locked mu         the pump                  nextWork
//	their results   a goroutine of the store  who has locked mu         landed.add and landed.takeAll
//	an answer       who has locked mu         who calls Next            worker.next
type core struct {
	service  *Service // for what is done later, by a timer
	clock    Clock    // Options.Clock
	metrics  *metrics
	log      *slog.Logger // of what workers do
	storeLog *storeLog

	domains       map[string]*domain
	workers       map[*worker]struct{}
	turns         []*worker // wait for their turn, the next one first
	toNotify      []*worker // have answers
	keys          keys
	over          overKeys // of calls
	swapsUnderWay int
	pumping       bool // a goroutine is in pump
	asked         bool // some proxy has asked

	storeClock storeClock
	// shownStartUntilNs is until when the store is starting, by the service's clock: operators are shown it, and nothing
	// is decided by it. See recordValue.startingUntilNs.
	shownStartUntilNs int64
	hasLooked         bool // Watch has set shownStartUntilNs. It is 0 before: no Clock is negative

	unfinished   int // asks that have begun and returns, until they are done, also those of closed streams
	draining     bool
	leavesUnread bool // Drain waits no more for streams that do not read their answers
	drained      chan struct{}

	// Memory that is used again.
	message     quota.Results // for one answer
	grantBuffer []quota.Grant // for its grants
}

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
		w, ok := s.core.nextWork(s.landed.takeAll())
		if !ok {
			break
		}
		s.mu.Unlock()
		for _, n := range w.notify {
			n.stream.onAnswers()
		}
		if len(w.ready) > 0 {
			s.sendSwaps(w.ready, w.swaps)
		}
		s.mu.Lock()
	}
	s.core.pumping = false
	s.mu.Unlock()
}

// work is what pump does without the lock.
type work struct {
	notify []*worker // their streams look for answers
	ready  []*key    // whose swaps go to the store
	swaps  []swapstore.Swap
}

// nextWork takes up the results that have come, and finds out what is to be done next. ok says that there was
// something, so that there may be more.
func (c *core) nextWork(came []landing) (w work, ok bool) {
	for i := range came {
		c.endSwap(came[i].key, came[i].result)
	}
	turns := c.prepareSwaps(&w)
	w.notify = c.toNotify
	c.toNotify = nil
	for _, n := range w.notify {
		n.notified = false
	}
	return w, len(came) > 0 || turns > 0 || len(w.ready) > 0 || len(w.notify) > 0
}

// prepareSwaps prepares the swaps of keys with operations, and then of what workers in turn ask for: as much as the
// store may have under way, but no more than maxBatch keys and turns, because meanwhile no stream gets
// the lock.
func (c *core) prepareSwaps(w *work) (turns int) {
	atLeast := min(len(c.keys.ready), maxBatch, maxSwaps-c.swapsUnderWay)
	w.ready = make([]*key, 0, atLeast)
	w.swaps = make([]swapstore.Swap, 0, atLeast)
	for len(w.ready) < maxBatch && c.swapsUnderWay < maxSwaps {
		k := c.keys.nextReady()
		if k == nil {
			if turns < maxBatch && c.giveTurn() {
				turns++
				continue
			}
			break
		}
		c.swapsUnderWay++
		localNs := c.clock.NowNs()
		w.ready = append(w.ready, k)
		w.swaps = append(w.swaps, k.nextSwap(localNs, c.storeClock.storeNs(localNs)))
	}
	return turns
}

// giveTurn lets the next worker begin some of its asks.
func (c *core) giveTurn() bool {
	if len(c.turns) == 0 {
		return false
	}
	w := c.turns[0]
	c.turns[0] = nil
	c.turns = c.turns[1:]
	w.beginNext()
	return true
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
//     started. It takes all results, or finds another one in pump, which takes them before it ends.
//   - A result that comes while pumpComes is not set has its goroutine start a pump.
//   - Only takeAll ends pumpComes, and it takes all results at the same moment.
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

// takeAll takes all results. The caller has them until it takes the next ones.
func (l *landed) takeAll() []landing {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pumpComes = false
	clear(l.spare)
	l.all, l.spare = l.spare[:0], l.all
	return l.spare
}

// endSwap takes up the result of a key's swap.
func (c *core) endSwap(k *key, r swapstore.Result) {
	c.swapsUnderWay--
	c.metrics.countResult(r)
	c.logFailure(k, r)
	l := k.learn(r)
	if r.Status != swapstore.Failed {
		c.storeClock.note(k.batch.sentNs, r.NowNs, mayBeMisled(&k.batch, r.Status, l.needsSwap))
	}
	switch {
	case l.needsSwap:
		c.keys.retry(k)
		return
	case l.err != nil:
		for _, o := range k.batch.operations {
			c.end(o, &action.Outcome{Effect: action.Effect{Err: l.err}})
		}
	default:
		for i, o := range k.batch.operations {
			c.endOrAgain(o, &l.outcomes[i])
		}
	}
	c.keys.rest(k)
}

func (c *core) logFailure(k *key, r swapstore.Result) {
	switch {
	case errors.Is(r.Err, swapstore.ErrFull):
		c.log.Warn("a key is not counted: on_unavailable decides", "domain", k.domain, "error", r.Err)
	case r.Status == swapstore.Failed:
		c.storeLog.unusable(r.Err)
	}
}

// endOrAgain ends an operation, or has it decided again at its AgainNs. A window that is about to end has ended by that
// time.
func (c *core) endOrAgain(o operation, out *action.Outcome) {
	if out.Rebased {
		c.metrics.rebased.Add(1)
	}
	if out.AgainNs == 0 {
		c.end(o, out)
		return
	}
	c.clock.AfterFunc(max(out.AgainNs-c.storeNow(), 0)+1, func() { c.service.submit(o) })
}

// end ends an operation.
func (c *core) end(o operation, out *action.Outcome) {
	switch err := out.Err; {
	case errors.Is(err, balance.ErrWindows):
		c.metrics.crowded.Add(1)
	case errors.Is(err, recordbytes.ErrNewer), errors.Is(err, recordbytes.ErrDamage):
		c.metrics.mismatches.Add(1)
	}
	o.done(out)
}

// submit lets an operation wait for its key's turn, and sends it to the store.
func (s *Service) submit(o operation) {
	s.mu.Lock()
	s.core.keys.add(o)
	s.mu.Unlock()
	s.pump()
}

// storeClock is what the service knows of the store's clock: how far it will be ahead of the
// service's own when a swap that leaves now has arrived. That is the smallest lead that was seen, so
// the fastest way to the store. The store finds a swap Late if it is even faster, because the store's
// clock is still before storeNs, or if it takes longer than the slack.
//
// Before the first result it knows nothing. Then storeNs is the service's own time, which may lie in 1970. So the first
// swap that writes is Late, and another addition follows the first: both go by what the result has said. A swap that
// only reads does no harm, because its operations are decided by the store's time once its result is there.
type storeClock struct {
	known   bool
	aheadNs int64
}

// storeNs is the earliest time that the store's clock may show to a swap that leaves at localNs.
func (c *storeClock) storeNs(localNs int64) int64 { return localNs + c.aheadNs }

// storeNow is storeNs of a swap that leaves now.
func (c *core) storeNow() int64 { return c.storeClock.storeNs(c.clock.NowNs()) }

// mayBeMisled reports whether the last swap of a batch may have been decided for a wrong storeNs, because the
// storeClock knows a wrong lead. That shows when its result is learned:
//
//	a swap that writes      is Late: the store has compared its clock with the times of the swap
//	a swap that only reads  needs another swap: its operations change something at the store's time, and at storeNs
//	                        they changed nothing
//	a swap with an AgeNs    is Young and needs another: storeNs may lie before the store has begun, and then the next
//	                        one would be decided as if the store were not starting
//
// The last two also need another swap if storeNs was right: the store has another value, or the service has not known
// that the store is starting. Then the storeClock takes over the lead of this swap without need. That does no harm: if
// it is too large, a later swap is Late.
func mayBeMisled(b *batch, status swapstore.Status, needsSwap bool) bool {
	return status == swapstore.Late || needsSwap && (b.reads || status == swapstore.Young)
}

// note notes that the store's clock said storeNs to a swap that left at sentNs. A larger lead than the known one only
// counts if the known one may have misled the swap: it was decided at a storeNs that was wrong.
func (c *storeClock) note(sentNs, storeNs int64, mayBeMisled bool) {
	ahead := storeNs - sentNs
	if !c.known || mayBeMisled || ahead < c.aheadNs {
		c.known, c.aheadNs = true, ahead
	}
}

// notifyLater has pump call the onAnswers of the worker's stream, so that its transport looks for answers.
func (c *core) notifyLater(w *worker) {
	if !w.notified {
		w.notified = true
		c.toNotify = append(c.toNotify, w)
	}
}

// beginDrain has all workers answered, and no more asks taken.
func (c *core) beginDrain() {
	c.draining = true
	c.clock.AfterFunc(int64(LastWithin), c.service.leaveUnread)
	for w := range c.workers {
		c.notifyLater(w)
	}
	c.endDrain()
}

// noteFinished notes that an ask or a return is done.
func (c *core) noteFinished() {
	c.unfinished--
	c.endDrain()
}

// endDrain ends Drain once a draining service has done everything. An ask that is pending, and whose worker waits for
// no turn, waits for the worker to read its answers.
func (c *core) endDrain() {
	if !c.draining || c.unfinished > 0 {
		return
	}
	for w := range c.workers {
		if len(w.pending) > 0 && (w.queued || !c.leavesUnread) {
			return
		}
	}
	select {
	case <-c.drained:
	default:
		close(c.drained)
	}
}
