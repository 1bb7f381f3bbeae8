package xds

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// mark is how the fleet replied to a revision.
type mark struct {
	number uint64
	acked  bool // some proxy accepted it
	nacked bool // some proxy refused it

	proxies *selector.Selector // whom it is for
	rollout *store.Rollout
}

// withheld says whether a revision is kept from proxies that come later.
func (m mark) withheld() bool { return m.nacked && !m.acked }

// stance is what decides which revision one proxy is offered.
type stance struct {
	acked   uint64   // the revision it accepted last, 0 for none
	refused []uint64 // what it refused
	since   uint64   // the newest revision when it subscribed: later ones are not withheld from it
	misses  int      // refusals in a row
	node    string   // its node id, "" for any that no canary is for
}

// maxMisses is how many refusals in a row a proxy may give, of the newest revision
// and of its last good one, before it is only offered new revisions.
const maxMisses = 2

// offer says which revision the proxy should hold, 0 for none. Revisions come
// in ascending order. The package comment has the rules.
func offer(revisions []mark, p stance) uint64 {
	if len(revisions) == 0 {
		return 0
	}
	newest := revisions[len(revisions)-1]
	if !p.hasRefused(newest.number) && (newest.number > p.since || !newest.withheld()) {
		return newest.number
	}
	if p.misses >= maxMisses {
		return 0
	}
	return lastGood(revisions, p)
}

// lastGood is offer without the newest revision's privilege.
func lastGood(revisions []mark, p stance) uint64 {
	// A proxy that refused something newer than what it runs stays there: what
	// others accepted meanwhile is not proven on it.
	refusedLater := slices.ContainsFunc(p.refused, func(r uint64) bool { return r > p.acked })
	if refusedLater && !p.hasRefused(p.acked) && has(revisions, p.acked) {
		return p.acked
	}
	for _, m := range slices.Backward(revisions) {
		if m.acked && !p.hasRefused(m.number) {
			return m.number
		}
	}
	for _, m := range slices.Backward(revisions) {
		if !m.nacked && !p.hasRefused(m.number) {
			return m.number
		}
	}
	return 0
}

// has says whether a revision is there, and not damaged.
func has(revisions []mark, number uint64) bool {
	return slices.ContainsFunc(revisions, func(m mark) bool { return m.number == number })
}

func (p stance) hasRefused(number uint64) bool { return slices.Contains(p.refused, number) }
