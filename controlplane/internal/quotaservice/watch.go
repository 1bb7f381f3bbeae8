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
	before := s.o.Clock.NowNs() // by the service's clock, as now and untilNs are
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

// noteAge notes for how long the store has had its state. Watch asked at the instant before, and got the answer at
// the instant now. isNew says that the store has begun since the last look.
func (c *core) noteAge(age, before, now int64) (isNew bool) {
	untilNs := now - age + StartingNs
	isNew = isNewStart(untilNs, c.shownStartUntilNs, before, now)
	if !c.hasLooked || untilNs > c.shownStartUntilNs {
		c.shownStartUntilNs = untilNs
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

// isNewStart reports whether the store has begun anew. By its answer it is starting until untilNs, and by earlier ones
// until knownNs. before and now are as in noteAge:
//
//	begun   before   ?     now
//	  |       |------|------|                        the store says its age, ? - begun, at some instant ?
//	  |------------- StartingNs ---------|           it is starting until here
//	  |------------- StartingNs ---------|------|    untilNs = now - age + StartingNs is late by now - ?
//
// So untilNs differs from look to look, though the store has begun but once. It has begun again only if
// untilNs is later than knownNs by more than that may be, and by WatchEvery: clocks drift a little.
func isNewStart(untilNs, knownNs, before, now int64) bool {
	isStarting := untilNs > now
	earliest := untilNs - (now - before)
	return isStarting && earliest-knownNs > int64(WatchEvery)
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
