package xds

import (
	"context"
	"fmt"
	"slices"
)

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
	for _, t := range l.tracks {
		numbers = append(numbers, t.removeOutdated(keep, used)...)
		if t.newest() > 0 {
			oldest = max(oldest, t.revisions[0].Number)
		}
	}
	for len(l.lost) > 0 && l.lost[0] < oldest {
		numbers, l.lost = append(numbers, l.lost[0]), l.lost[1:]
	}
	slices.Sort(numbers)
	return numbers
}

// inUse returns the revisions that proxies run, are about to run, or fall back on, and
// those that an unknown proxy would fall back on. The caller holds mu.
func (l *Ledger) inUse() map[uint64]bool {
	used := map[uint64]bool{}
	for _, t := range l.tracks {
		used[t.lastGood(stance{})] = true
	}
	for _, p := range l.proxies {
		used[p.known.Acked] = true
		for _, s := range p.sessions {
			used[s.Runs], used[s.Acked], used[s.Pushed] = true, true, true
			used[s.track.offer(s.stance)], used[s.track.lastGood(s.stance)] = true, true
		}
	}
	return used
}
