package quotaservice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// A store that has no state, because it is new, was emptied or is one in memory, does not know
// what proxies hold of it. They state it, and StartingNs after the store has begun all that have
// a stream have done so:
//
//   - Each service looks at the store's age every WatchEvery, so it learns of the loss while at
//     least StartingNs - WatchEvery are left, whichever service has found it first.
//   - It ends its streams then. A worker states all that it holds first on a new stream, in at most
//     129 messages, each when the one before is answered.
//   - What holds units carries the age that the store must have, which the store itself compares
//     by its own clock. So no service can be mistaken, and no proxy has a say.
const (
	// StartingNs is for how long a store without state grants nothing of what is held until an
	// answer is known.
	StartingNs = 4 * second
	// WatchEvery is how often a service looks whether its store has lost its state.
	WatchEvery = 250 * time.Millisecond
)

// ErrStarting is why units are not held yet.
var ErrStarting = errors.New("the quota store is starting: it has no state yet, and proxies report what they hold")

// Watch looks whether the store has lost its state, and has the workers of all streams state anew
// what they hold. Whoever runs the service calls it often within StartingNs.
func (s *Service) Watch() {
	ctx, cancel := context.WithTimeout(s.ctx, StartingNs/2) // a Cluster's first takes longer than a swap
	defer cancel()
	before := s.o.Clock.NowNs()
	age, anew, err := s.o.Store.Age(ctx)
	if err != nil { // the heartbeat says so
		return
	}
	s.mu.Lock()
	now := s.o.Clock.NowNs()
	start := now - age + StartingNs
	earliest := start - (now - before) // the way back from the store makes start later
	lost := start > now && earliest-s.startNs > int64(WatchEvery)
	level := slog.LevelWarn
	if s.startNs == 0 { // the first look: a new store is as it should be
		level = slog.LevelInfo
		s.startNs = start
	}
	s.startNs = max(s.startNs, start)
	if anew {
		for st := range s.streams {
			st.ending = true
			s.wake(st)
		}
	}
	s.mu.Unlock()
	s.pump()
	if lost {
		s.o.Log.Log(s.ctx, level, "the quota store has no state: rules with settle or algorithm concurrency are starting, "+
			"and on_unavailable decides, while proxies report what they hold",
			"for", time.Duration(start-now).Round(time.Millisecond))
	}
}

// Starting says for how much longer the store is starting; nil = it has its state.
func (s *Service) Starting() error {
	if ns := s.startingNs(); ns > 0 {
		left := time.Duration(ns).Round(100 * time.Millisecond)
		return fmt.Errorf("%w; on_unavailable decides for %s", ErrStarting, left)
	}
	return nil
}

func (s *Service) startingNs() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.startNs-s.o.Clock.NowNs(), 0)
}
