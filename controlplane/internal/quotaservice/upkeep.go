package quotaservice

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// What a service does with its store beside swaps. Whoever runs the service calls these regularly:
//
//	Watch          every WatchEvery: has the store lost its state?
//	Heartbeat      every HeartbeatEvery: does the store answer? It stores the secret again if that is lost
//	NoteProcesses  every HeartbeatEvery: which processes are alive
//
// None waits for another one, because each may take long.
//
// Healthy and Starting tell operators what was found.

// A store without state does not know what proxies hold of it: it is new, was emptied or is one
// in memory. Proxies report what they hold. StartingNs after the store has begun, all that have a
// stream have done so:
//
//   - Each service looks at the store's age every WatchEvery. So it learns of a loss while at
//     least StartingNs - WatchEvery are left, whichever service has found it first.
//   - Then it ends its streams. On a new stream a worker first reports all that it holds, in at
//     most 129 messages, each when the one before is answered.
//   - A swap that holds units carries the age that the store must have. The store itself compares
//     it by its own clock, so no service can be mistaken, and no proxy decides it.
//
// So "the store is starting" is known at three places, from two sources:
//
//	core.shownStartUntilNs       from Store.Tend, by the service's clock   operators, logs and metrics read it
//	recordValue.startingUntilNs  from a Young swap, by the store's clock   operations are decided by it
//	balance.View.StartingForNs   from the key, for one decision            balance.View.OfferNow reads it
const (
	// StartingNs is for how long a store without state lets nobody hold units.
	StartingNs = 4 * second
	// WatchEvery is how often a service looks whether its store has lost its state.
	WatchEvery = 250 * time.Millisecond
)

// ErrStarting is why units are not held yet.
var ErrStarting = action.ErrStarting

// Watch looks whether the store has lost its state. The store's answer says it in two ways:
//
//	anew  a server of it has another state than at the last look. All streams end, and their workers
//	      report what they hold on new ones
//	age   how long the store has had its state: see noteAge. If it has begun since the last look, the log says so
//
// Whoever runs the service calls it often within StartingNs.
func (s *Service) Watch() {
	ctx, cancel := context.WithTimeout(s.ctx, StartingNs/2) // a Cluster's first takes longer than a swap
	defer cancel()
	askedNs := s.o.Clock.NowNs()
	ageNs, anew, err := s.o.Store.Tend(ctx)
	if err != nil { // the heartbeat asks for other things, and may be answered
		s.metrics.storeErrors.Add(1)
		s.storeLog.unusable(err)
		return
	}
	s.mu.Lock()
	localNs := s.o.Clock.NowNs()
	level := slog.LevelWarn
	if !s.core.hasLooked {
		level = slog.LevelInfo // a new store is as it should be
	}
	hasBegun := s.core.noteAge(ageNs, askedNs, localNs)
	startForNs := s.core.shownStartUntilNs - localNs
	if anew {
		s.core.endStreams()
	}
	s.mu.Unlock()
	s.pump()
	if hasBegun {
		s.o.Log.Log(s.ctx, level, "the quota store has no state: rules with settle or algorithm concurrency are starting, "+
			"and on_unavailable decides, while proxies report what they hold",
			"for", time.Duration(startForNs).Round(time.Millisecond))
	}
}

// noteAge notes for how long the store has had its state, and reports whether the store has begun since the last look.
//
// Watch asked at askedNs, and has the answer at localNs, both by the service's clock. The store said its age at some
// instant between these. So the end of its start is known only within bounds: StartingNs after it has begun, which is
//
//	askedNs - ageNs + StartingNs  at the earliest
//	localNs - ageNs + StartingNs  at the latest
//
// These differ from look to look, though the store has begun but once. It has begun anew only if its start ends later
// than any earlier look allows, even at the earliest. WatchEvery more is for clocks that drift a little.
func (c *core) noteAge(ageNs, askedNs, localNs int64) (hasBegun bool) {
	earliestNs, latestNs := askedNs-ageNs+StartingNs, localNs-ageNs+StartingNs
	isStarting := latestNs > localNs
	hasBegun = isStarting && earliestNs > c.shownStartUntilNs+int64(WatchEvery)
	if !c.hasLooked || latestNs > c.shownStartUntilNs {
		c.shownStartUntilNs = latestNs
	}
	c.hasLooked = true
	return hasBegun
}

// endStreams has all workers report what they hold on new streams.
func (c *core) endStreams() {
	for w := range c.workers {
		w.ending = true
		c.notifyLater(w)
	}
}

// Starting says for how much longer the store is starting; nil = it has its state.
func (s *Service) Starting() error {
	if ns := s.shownStartForNs(); ns > 0 {
		left := time.Duration(ns).Round(100 * time.Millisecond)
		return fmt.Errorf("%w; on_unavailable decides for %s", ErrStarting, left)
	}
	return nil
}

// shownStartForNs is how much longer the store is starting, as operators are told.
func (s *Service) shownStartForNs() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.core.shownStartUntilNs-s.o.Clock.NowNs(), 0)
}

// HeartbeatEvery is how often a service has a heartbeat, and notes in the store which processes are alive: a few times
// within LiveFor.
const HeartbeatEvery = swapstore.LiveFor / 4

// Heartbeat finds out whether the store answers. If the store has lost its state, it stores the services' secret
// again: services with two secrets would count apart. It does nothing else, because services that start wait for it:
// see SecretWait.
func (s *Service) Heartbeat() {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.StoreTimeout)
	defer cancel()
	err := s.agree(ctx, func() []byte { return *s.secret.Load() })
	if s.metrics.countBeat(err) {
		s.o.Log.Info("the store answers again")
	}
	if err != nil {
		s.storeLog.unusable(err)
	}
}

// notedAtOnce is how many processes are noted at once. If the store takes 100 ms for each, 1,600 are noted within
// LiveFor.
const notedAtOnce = 16

// NoteProcesses notes in the store which processes have streams. Of the store's answers for a domain the largest counts
// all of them: if the store knew none before, the first answer is 1.
func (s *Service) NoteProcesses() {
	type process struct {
		domain *domain
		number uint64
	}
	alive := map[process]bool{}
	s.mu.Lock()
	for w := range s.core.workers {
		if w.domain != nil {
			alive[process{w.domain, w.process}] = true
		}
	}
	s.mu.Unlock()

	var notes errgroup.Group
	notes.SetLimit(notedAtOnce)
	var mu sync.Mutex
	all := map[*domain]uint32{}
	for p := range alive {
		notes.Go(func() error {
			n := s.note(p.domain, p.number)
			mu.Lock()
			defer mu.Unlock()
			all[p.domain] = max(all[p.domain], n)
			return nil
		})
	}
	_ = notes.Wait() // none fails: note counts and logs its errors
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, n := range all {
		d.proxies = cmp.Or(n, d.proxies)
	}
}

// noteAlive notes in the store that a process is alive, which has come. If several come at once, the store's answers
// may be taken up in any order, so none lowers how many there are. NoteProcesses does.
func (s *Service) noteAlive(d *domain, process uint64) {
	n := s.note(d, process)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.proxies = max(d.proxies, n)
}

// note notes in the store that a process is alive, and returns how many of the domain are; 0 if the store fails.
func (s *Service) note(d *domain, process uint64) uint32 {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.StoreTimeout)
	defer cancel()
	n, err := s.o.Store.Live(ctx, d.name, process)
	if err != nil {
		s.metrics.storeErrors.Add(1)
		s.storeLog.unusable(err)
		return 0
	}
	return uint32(min(int64(n), math.MaxUint32))
}

// Healthy says why the store does not answer, or has no state yet.
func (s *Service) Healthy(ctx context.Context) error {
	if s.apart.Load() {
		return errOtherSecret
	}
	answered := make(chan error, 1)
	s.o.Store.Swap(ctx, []swapstore.Swap{{}}, func(_ int, r swapstore.Result) { answered <- r.Err })
	select {
	case err := <-answered:
		return cmp.Or(err, s.Starting())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// storeLog logs why the store does not do what it should, once a while.
type storeLog struct {
	*slog.Logger
	closed func() error // not nil once this service gives up what the store has under way
}

func (l *storeLog) unusable(err error) {
	if l.closed() == nil {
		l.Error("use the store: meanwhile on_unavailable decides", "error", err)
	}
}
