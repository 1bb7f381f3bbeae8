package xds

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// A revision that is damaged in the store counts as absent: no proxy is offered
// it, and a proxy that runs it gets its last good one.

// Damaged returns the revisions of a policy that are damaged, in ascending order, "" for
// all. One of which not even the policy is known may be of any.
func (l *Ledger) Damaged(policy string) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.Clone(l.lost)
	for name, t := range l.tracks {
		if policy == "" || policy == name {
			for _, r := range t.revisions {
				if r.Damaged {
					list = append(list, r.Number)
				}
			}
		}
	}
	slices.Sort(list)
	return list
}

// isDamaged reads a revision, so that damage is known before a proxy needs it.
// Other errors show when it is pushed.
func (l *Ledger) isDamaged(ctx context.Context, number uint64) bool {
	_, err := l.store.Get(ctx, number)
	return errors.Is(err, store.ErrDamaged)
}

// withdraw takes a damaged revision away; ok is false if that was done before.
func (l *Ledger) withdraw(number uint64) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.trackOf(number).find(number)
	if ok = r != nil && !r.Damaged; ok {
		r.Damaged = true
		l.broadcastOffers()
	}
	return ok
}

// logDamage logs that revisions are damaged.
func (s *Server) logDamage(numbers ...uint64) {
	for _, number := range numbers {
		s.Log.Error("a stored revision is damaged and is not pushed, proxies get the last good one: "+
			"apply the policy again, or restore a backup", "revision", number)
	}
}
