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
	before    uint64          // the newest revision before the latest look at the store
	revisions []store.Summary // ascending, without those that are damaged
	damaged   []uint64        // ascending
	aborted   []uint64        // ascending: they count as absent, too
}

// newest returns the number of the newest revision, 0 if there is none.
func (t *track) newest() uint64 {
	if t == nil || len(t.revisions) == 0 {
		return 0
	}
	return t.revisions[len(t.revisions)-1].Number
}

// current is the revision that a proxy gets which connects for the first time, 0 if
// there is none: the newest, unless it is withheld.
func (t *track) current() uint64 { return t.offer(stance{Since: t.newest()}) }

// find returns a revision, nil if it is not there.
func (t *track) find(number uint64) *store.Summary {
	if t == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(t.revisions, number, func(r store.Summary, n uint64) int { return cmp.Compare(r.Number, n) })
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
	return t.revisions[len(t.revisions)-1].Proxies
}

// settle marks a revision with a reply. It reports whether that may change what others
// are offered.
func (t *track) settle(a store.Reply) (changed bool) {
	r := t.find(a.Revision)
	if r == nil {
		return false
	}
	is := &r.Nacked
	if a.Accepted {
		is = &r.Acked
	}
	changed, *is = !*is, true
	return changed
}

// withdraw takes a damaged revision away; ok is false if that was done before.
func (t *track) withdraw(number uint64) (ok bool) {
	if slices.Contains(t.damaged, number) {
		return false
	}
	t.revisions = slices.DeleteFunc(slices.Clone(t.revisions), func(r store.Summary) bool { return r.Number == number })
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
	for i, r := range t.revisions {
		if i < old && !used[r.Number] {
			numbers = append(numbers, r.Number)
		} else {
			kept = append(kept, r)
		}
	}
	t.revisions = kept
	// Those that count as absent go with those of their age.
	for _, absent := range []*[]uint64{&t.damaged, &t.aborted} {
		for len(*absent) > 0 && (*absent)[0] < kept[0].Number { // the newest is always kept
			numbers, *absent = append(numbers, (*absent)[0]), (*absent)[1:]
		}
	}
	return numbers
}
