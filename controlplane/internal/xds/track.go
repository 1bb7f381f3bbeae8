package xds

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// track is a policy as proxies are offered it: its revisions, and what the fleet made
// of them. The Ledger's mu guards it. A nil track is that of a proxy to which no policy
// is offered.
type track struct {
	name      string
	before    uint64   // the newest revision before the latest look at the store
	revisions []mark   // ascending, without those that are damaged
	damaged   []uint64 // ascending
	aborted   []uint64 // ascending: they count as absent, too
}

// newest returns the number of the newest revision, 0 if there is none.
func (t *track) newest() uint64 {
	if t == nil || len(t.revisions) == 0 {
		return 0
	}
	return t.revisions[len(t.revisions)-1].number
}

// offer is the revision that a proxy should hold, 0 for none.
func (t *track) offer(p stance) uint64 { return offer(t.of(p), p) }

// current is the revision that a proxy gets which connects for the first time, 0 if
// there is none: the newest, unless it is withheld.
func (t *track) current() uint64 { return t.offer(stance{since: t.newest()}) }

// find returns the mark of a revision, nil if there is none.
func (t *track) find(number uint64) *mark {
	if t == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(t.revisions, number, func(m mark, n uint64) int { return cmp.Compare(m.number, n) })
	if !ok {
		return nil
	}
	return &t.revisions[i]
}

// proxies say whom the policy is for: nil for those that no other policy takes, and of a
// policy without a revision that is whole.
func (t *track) proxies() *selector.Selector {
	if t == nil || len(t.revisions) == 0 {
		return nil
	}
	return t.revisions[len(t.revisions)-1].proxies
}

// add appends a revision. Its marks never go away: one that the store failed to keep
// stays here.
func (t *track) add(s *store.Summary, known *mark) {
	m := mark{number: s.Number, acked: s.Acked, nacked: s.Nacked, proxies: s.Proxies, rollout: s.Rollout}
	if known != nil {
		m.acked, m.nacked = m.acked || known.acked, m.nacked || known.nacked
	}
	t.revisions = append(t.revisions, m)
}

// lastGood is offer without the newest revision's privilege.
func (t *track) lastGood(p stance) uint64 { return lastGood(t.of(p), p) }

// settle marks a revision with a reply. It reports whether that may change what others
// are offered.
func (t *track) settle(a store.Reply) (changed bool) {
	m := t.find(a.Revision)
	if m == nil {
		return false
	}
	before := *m
	m.acked, m.nacked = before.acked || a.Accepted, before.nacked || !a.Accepted
	return *m != before
}

// withdraw takes a damaged revision away; ok is false if that was done before.
func (t *track) withdraw(number uint64) (ok bool) {
	if slices.Contains(t.damaged, number) {
		return false
	}
	t.revisions = slices.DeleteFunc(slices.Clone(t.revisions), func(m mark) bool { return m.number == number })
	t.damaged = append(t.damaged, number)
	slices.Sort(t.damaged)
	return true
}

// removeOutdated takes the revisions out of the list that are neither among the
// newest ones to keep nor in use, and returns them.
func (t *track) removeOutdated(keep int, used map[uint64]bool) (numbers []uint64) {
	old := len(t.revisions) - keep
	if len(t.revisions) == 0 {
		return nil
	}
	kept := t.revisions[:0:0]
	for i, m := range t.revisions {
		if i < old && !used[m.number] {
			numbers = append(numbers, m.number)
		} else {
			kept = append(kept, m)
		}
	}
	t.revisions = kept
	// Those that count as absent go with those of their age.
	for _, absent := range []*[]uint64{&t.damaged, &t.aborted} {
		for len(*absent) > 0 && (*absent)[0] < kept[0].number { // the newest is always kept
			numbers, *absent = append(numbers, (*absent)[0]), (*absent)[1:]
		}
	}
	return numbers
}
