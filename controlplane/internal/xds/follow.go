package xds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// pruneInterval lets a fleet reply before the server looks at every proxy for
	// revisions that came out of use.
	pruneInterval = time.Second
	// retryInterval is the pause after the store has failed.
	retryInterval = 10 * time.Second
)

// keepUp keeps the ledger's list of revisions up to date with the store, and the
// store free of revisions that are no longer needed.
func (s *Server) keepUp(ctx context.Context) {
	housekeeping := time.NewTicker(forgetAfter / 10)
	defer housekeeping.Stop()
	unread := s.unread()        // closed once the store has changes to read; nil after an error
	var retry <-chan time.Time  // fires a while after an error: the store is to be read again
	var changed <-chan struct{} // closed once the ledger has changed: revisions may have come out of use
	prune := time.After(0)      // fires a while after that; at once in the beginning
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-unread:
			err = s.Refresh(ctx)
		case <-retry:
			err = s.Refresh(ctx)
		case now := <-housekeeping.C:
			if err := s.ledger.forget(ctx, now); err != nil {
				s.Log.Error("forget proxies", "error", err)
			}
		case <-changed:
			changed, prune = nil, time.After(pruneInterval)
			continue
		case <-prune:
		}
		unread = s.unread()
		// Taken before looking what is in use, so that no change falls in between.
		changed = s.ledger.changes()
		err = errors.Join(err, s.prune(ctx))
		if err != nil && ctx.Err() == nil {
			s.Log.Error("follow the store", "error", err)
			s.readAgain() // what the store failed to drop is listed again
			unread, retry = nil, time.After(retryInterval)
		}
	}
}

// unread returns a channel that is closed once the store has changes that the ledger has not
// read.
func (s *Server) unread() <-chan struct{} {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	return s.changed
}

// readAgain has the next Refresh read the list, whether the store has changed or not.
func (s *Server) readAgain() {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	now := make(chan struct{})
	close(now)
	s.changed = now
}

// Refresh reads the list of revisions again, if the store has changed since, and logs new
// damage. The server does so by itself soon after each change of the store.
func (s *Server) Refresh(ctx context.Context) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	select {
	case <-s.changed:
	default:
		return nil // it is read already
	}
	changed := s.Store.Appended() // taken before reading, so that no revision falls in between
	known := s.ledger.Damaged("")
	if err := s.ledger.refresh(ctx); err != nil {
		return fmt.Errorf("read revisions: %w", err)
	}
	s.changed = changed
	s.logDamage(slices.DeleteFunc(s.ledger.Damaged(""), func(n uint64) bool { return slices.Contains(known, n) })...)
	return nil
}

// maxDropped is how many revisions are dropped at once: a store may bound a change.
const maxDropped = 100

// prune drops the revisions that are neither among the newest nor in use.
func (s *Server) prune(ctx context.Context) error {
	numbers := s.ledger.removeOutdated(s.Keep)
	if len(numbers) == 0 {
		return nil
	}
	for some := range slices.Chunk(numbers, maxDropped) {
		if err := s.Store.Drop(ctx, some); err != nil {
			return fmt.Errorf("drop old revisions: %w", err)
		}
	}
	s.Log.Info("old revisions dropped", "count", len(numbers), "oldest", numbers[0], "newest", numbers[len(numbers)-1])
	return nil
}

// removeOutdated takes the revisions out of the list that are neither among the
// newest ones to keep nor in use, and returns them: no proxy is offered them from
// then on. What the store fails to drop comes back with the next refresh.
func (l *Ledger) removeOutdated(keep int) (numbers []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if keep == 0 {
		return nil
	}
	used := l.inUse()
	var oldest uint64
	for _, t := range l.policies.tracks {
		numbers = append(numbers, t.removeOutdated(keep, used)...)
		if t.newest() > 0 {
			oldest = max(oldest, t.revisions[0].Number)
		}
	}
	p := &l.policies
	for len(p.lost) > 0 && p.lost[0] < oldest {
		numbers = append(numbers, p.lost[0])
		p.lost = p.lost[1:]
	}
	slices.Sort(numbers)
	return numbers
}

// inUse returns the revisions that proxies run, are about to run, or fall back on, and
// those that an unknown proxy would fall back on. The caller holds mu.
func (l *Ledger) inUse() map[uint64]bool {
	used := map[uint64]bool{}
	for _, t := range l.policies.tracks {
		used[t.lastGood(outsideCanaries, stance{})] = true
	}
	for _, p := range l.proxies {
		used[p.known.Acked] = true
		for _, s := range p.sessions {
			for _, number := range []uint64{s.Runs, s.Acked, s.Pushed, s.offered(), s.lastGood()} {
				used[number] = true
			}
		}
	}
	return used
}

// Damaged returns the revisions of a policy that are damaged, in ascending order, "" for
// all. Where not even the policy is known, a revision may be of any. A damaged revision
// counts as absent: no proxy is offered it, and a proxy that runs it gets its last good one.
func (l *Ledger) Damaged(policy string) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policies.damagedOf(policy)
}

// withdraw takes a damaged revision away, and says whether nobody had done so before.
func (l *Ledger) withdraw(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.policies.trackOf(number).find(number)
	if r == nil || r.Damaged {
		return false
	}
	r.Damaged = true
	l.broadcastOffers()
	return true
}

// logDamage logs which revisions are damaged.
func (s *Server) logDamage(numbers ...uint64) {
	for _, number := range numbers {
		s.Log.Error("a stored revision is damaged and is not pushed, proxies get the last good one: "+
			"apply the policy again, or restore a backup", "revision", number)
	}
}
