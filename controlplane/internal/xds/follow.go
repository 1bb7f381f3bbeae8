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

// follow keeps the ledger's list of revisions up to date with the store, and the
// store free of revisions that are no longer needed.
func (s *Server) follow(ctx context.Context) {
	housekeeping := time.NewTicker(forgetAfter / 10)
	defer housekeeping.Stop()
	unread := s.unread()
	var changed <-chan struct{}
	var retry <-chan time.Time
	look := time.After(0)
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
			changed, look = nil, time.After(pruneInterval)
			continue
		case <-look:
		}
		unread = s.unread()
		// Taken before looking what is in use, so that no change falls in between.
		changed = s.ledger.changes()
		if err = errors.Join(err, s.prune(ctx)); err != nil && ctx.Err() == nil {
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

// Refresh reads the list of revisions anew, if the store has changed since, and logs new
// damage. The server does so by itself soon after each change of the store.
func (s *Server) Refresh(ctx context.Context) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	select {
	case <-s.changed:
	default:
		return nil // whoever noticed the change first has read it
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
