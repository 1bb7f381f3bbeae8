package xds

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// stance is what decides, with its node id, which revision one proxy is offered.
type stance struct {
	Acked   uint64   `json:",omitzero"` // the revision it accepted last, 0 for none
	Refused []uint64 `json:",omitzero"` // what it refused
	Since   uint64   `json:",omitzero"` // the newest revision when it subscribed: later ones are not withheld from it
	Misses  int      `json:",omitzero"` // refusals in a row
}

// offered says which revision the session should hold, 0 for none.
func (s *session) offered() uint64 { return s.track.offer(s.Place.Node, s.stance) }

// lastGood says which one it falls back on, 0 for none.
func (s *session) lastGood() uint64 { return s.track.lastGood(s.Place.Node, s.stance) }

// newest says which one is the newest that is for it, 0 for none.
func (s *session) newest() uint64 { return first(s.track.of(s.Place.Node)).Number }

// outsideCanaries stands for the node id of a proxy that no canary reaches.
const outsideCanaries = ""

// maxMisses is how many refusals in a row a proxy may give, of the newest revision
// and of its last good one, before it is only offered new revisions.
const maxMisses = 2

// offer says which revision a proxy should hold, 0 for none. The package comment has
// the rules.
func (t *track) offer(node string, p stance) uint64 {
	newest := first(t.of(node))
	withheld := newest.Nacked && !newest.Acked // from proxies that come later
	switch {
	case !p.hasRefused(newest.Number) && (newest.Number > p.Since || !withheld):
		return newest.Number
	case p.Misses >= maxMisses:
		return 0
	}
	return t.lastGood(node, p)
}

// lastGood is offer without the newest revision's privilege.
func (t *track) lastGood(node string, p stance) uint64 {
	// A proxy that refused something newer than what it runs stays there: what
	// others accepted meanwhile is not proven on it.
	refusedLater := slices.ContainsFunc(p.Refused, func(r uint64) bool { return r > p.Acked })
	if refusedLater && !p.hasRefused(p.Acked) && t.isFor(node, p.Acked) {
		return p.Acked
	}
	untried := uint64(0)
	for r := range t.of(node) {
		switch {
		case p.hasRefused(r.Number):
		case r.Acked:
			return r.Number
		case !r.Nacked && untried == 0:
			untried = r.Number
		}
	}
	return untried
}

func (p stance) hasRefused(number uint64) bool { return slices.Contains(p.Refused, number) }

// track is a policy as proxies are offered it: its revisions, and what the fleet made
// of them. The Ledger's mu guards it. A nil track has no revisions: it stands for a policy or a revision that
// is not here, and for the policy of a proxy that has had no session since the start.
type track struct {
	name      string
	before    uint64          // the newest revision before the latest look at the store
	revisions []store.Summary // ascending
}

// backward goes over the revisions that count, the newest first.
func (t *track) backward() iter.Seq[*store.Summary] {
	return func(yield func(*store.Summary) bool) {
		for i := len(t.all()) - 1; i >= 0; i-- {
			if r := &t.revisions[i]; r.Counts() && !yield(r) {
				return
			}
		}
	}
}

func (t *track) all() []store.Summary {
	if t == nil {
		return nil
	}
	return t.revisions
}

// first is the first of the revisions, or one with number 0.
func first(of iter.Seq[*store.Summary]) (first store.Summary) {
	for r := range of {
		return *r
	}
	return first
}

// newest returns the number of the newest revision, 0 if there is none.
func (t *track) newest() uint64 { return first(t.backward()).Number }

// forNewProxy is the revision that a proxy gets which connects for the first time, 0 if
// there is none: the newest, unless it is withheld.
func (t *track) forNewProxy() uint64 { return t.offer(outsideCanaries, stance{Since: t.newest()}) }

// find returns a revision, also one that does not count, or nil.
func (t *track) find(number uint64) *store.Summary {
	byNumber := func(r store.Summary, n uint64) int { return cmp.Compare(r.Number, n) }
	i, ok := slices.BinarySearchFunc(t.all(), number, byNumber)
	if !ok {
		return nil
	}
	return &t.revisions[i]
}

// proxies selects the proxies that the policy is for. It is nil for those that no other policy
// takes, and for a policy without a revision that counts.
func (t *track) proxies() *selector.Selector { return first(t.backward()).Proxies }

// mark marks a revision with a reply. It reports whether that may change what others
// are offered.
func (t *track) mark(reply store.Reply) (changed bool) {
	r := t.find(reply.Revision)
	if r == nil {
		return false
	}
	mark := &r.Nacked
	if reply.Accepted {
		mark = &r.Acked
	}
	changed = !*mark
	*mark = true
	return changed
}

// removeOutdated takes the revisions out of the list that are neither among the newest
// ones to keep nor in use, and returns them. Those that do not count go with those of their age.
func (t *track) removeOutdated(keep int, used map[uint64]bool) (numbers []uint64) {
	keeps := map[uint64]bool{}
	oldest := uint64(0) // the oldest number that is kept
	newer := 0          // revisions that count and are newer than r
	for r := range t.backward() {
		if newer < keep || used[r.Number] {
			keeps[r.Number], oldest = true, r.Number
		}
		newer++
	}
	if newer == 0 {
		return nil
	}
	t.revisions = slices.DeleteFunc(t.revisions, func(r store.Summary) bool {
		isOutdated := r.Number < oldest || r.Counts() && !keeps[r.Number]
		if isOutdated {
			numbers = append(numbers, r.Number)
		}
		return isOutdated
	})
	return numbers
}
