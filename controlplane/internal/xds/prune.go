package xds

import (
	"context"
	"fmt"
	"slices"
)

// prune drops the revisions that are neither among the newest nor in use.
func (s *Server) prune(ctx context.Context) error {
	numbers := s.ledger.removeOutdated(s.keep)
	if len(numbers) == 0 {
		return nil
	}
	if err := s.store.Drop(ctx, numbers); err != nil {
		return fmt.Errorf("drop old revisions: %w", err)
	}
	s.log.Info("old revisions dropped", "count", len(numbers), "oldest", numbers[0], "newest", numbers[len(numbers)-1])
	return nil
}

// removeOutdated takes the revisions out of the list that are neither among the
// newest ones to keep nor in use, and returns them: no proxy is offered them from
// then on. What the store fails to drop comes back with the next refresh.
func (l *Ledger) removeOutdated(keep int) (numbers []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	numbers = l.track.removeOutdated(keep, l.inUse)
	slices.Sort(numbers)
	return numbers
}

// inUse returns the revisions that proxies run, are about to run, or fall back
// on, and the one that an unknown proxy would fall back on. The caller holds mu.
func (l *Ledger) inUse() map[uint64]bool {
	used := map[uint64]bool{lastGood(l.track.revisions, stance{}): true}
	for _, p := range l.proxies {
		used[p.known.Acked] = true
		for _, s := range p.sessions {
			used[s.runs], used[s.stance.acked], used[s.pushed] = true, true, true
			used[s.track.offer(s.stance)], used[lastGood(s.track.revisions, s.stance)] = true, true
		}
	}
	return used
}
