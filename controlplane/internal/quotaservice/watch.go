package quotaservice

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
)

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
//	core.shownStartUntilNs       from Store.Age, by the service's clock    operators, logs and metrics read it
//	recordValue.startingUntilNs  from a Young swap, by the store's clock   operations are decided by it
//	balance.View.IsStarting      from the key, for one decision            balance.View.Room reads it
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
	before := s.o.Clock.NowNs() // by the service's clock, as now is
	age, anew, err := s.o.Store.Age(ctx)
	if err != nil { // the heartbeat says so
		return
	}
	s.mu.Lock()
	now := s.o.Clock.NowNs()
	level := slog.LevelWarn
	if !s.core.hasLooked {
		level = slog.LevelInfo // a new store is as it should be
	}
	isNew := s.core.noteAge(age, before, now)
	startForNs := s.core.shownStartUntilNs - now
	if anew {
		s.core.endStreams()
	}
	s.mu.Unlock()
	s.pump()
	if isNew {
		s.o.Log.Log(s.ctx, level, "the quota store has no state: rules with settle or algorithm concurrency are starting, "+
			"and on_unavailable decides, while proxies report what they hold",
			"for", time.Duration(startForNs).Round(time.Millisecond))
	}
}

// noteAge notes for how long the store has had its state. isNew says that the store has begun since the last look.
//
// Watch asked at the instant before, and has the answer at the instant now. The store said its age at some instant
// between these. So the end of its start is known only within bounds: StartingNs after it has begun, which is
//
//	before - age + StartingNs  at the earliest
//	now - age + StartingNs     at the latest
//
// These differ from look to look, though the store has begun but once. It has begun anew only if its start ends later
// than any earlier look allows, even at the earliest. WatchEvery more is for clocks that drift a little.
func (c *core) noteAge(age, before, now int64) (isNew bool) {
	earliestNs, latestNs := before-age+StartingNs, now-age+StartingNs
	isStarting := latestNs > now
	isNew = isStarting && earliestNs > c.shownStartUntilNs+int64(WatchEvery)
	if !c.hasLooked || latestNs > c.shownStartUntilNs {
		c.shownStartUntilNs = latestNs
	}
	c.hasLooked = true
	return isNew
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
