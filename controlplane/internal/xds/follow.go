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
func (s *Server) follow(ctx context.Context, appended <-chan struct{}) {
	housekeeping := time.NewTicker(forgetAfter / 10)
	defer housekeeping.Stop()
	var changed <-chan struct{}
	var retry <-chan time.Time
	look := time.After(0)
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-appended:
			appended = s.Store.Appended() // before reading, so that no revision falls in between
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
		// Taken before looking what is in use, so that no change falls in between.
		changed = s.ledger.changes()
		if err = errors.Join(err, s.prune(ctx)); err != nil && ctx.Err() == nil {
			s.Log.Error("follow the store", "error", err)
			retry = time.After(retryInterval)
		}
	}
}

// Refresh reads the list of revisions anew and logs new damage. The server does so by
// itself soon after each change of the store.
func (s *Server) Refresh(ctx context.Context) error {
	known := s.ledger.Damaged("")
	if err := s.ledger.refresh(ctx); err != nil {
		return fmt.Errorf("read revisions: %w", err)
	}
	s.logDamage(slices.DeleteFunc(s.ledger.Damaged(""), func(n uint64) bool { return slices.Contains(known, n) })...)
	return nil
}
