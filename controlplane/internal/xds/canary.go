package xds

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// rank is where a node id stands, from 0 to 100. It depends on nothing else: so the same
// proxies are in each canary of a percentage, and in those of a higher one.
func rank(node string) float64 {
	h := sha256.Sum256([]byte(node))
	return float64(binary.BigEndian.Uint64(h[:])>>11) / (1 << 53) * 100
}

func byRank(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) }

// reaches says whether a proxy gets the revision of a rollout that lasts. It depends only on
// what is stored: so all control planes on a store agree, and a proxy that is in a canary
// stays in it.
func reaches(r *store.Rollout, node string) bool {
	_, isExcepted := slices.BinarySearch(r.Except, node)
	return node != "" && (rank(node) < r.Percent) != isExcepted
}

// except returns the nodes for which a rollout must not decide by their ranks, so that it
// reaches its share of the nodes, rounded up: those with the lowest ranks.
func except(nodes []string, percent float64) (excepted []string) {
	nodes = slices.Compact(slices.SortedFunc(slices.Values(nodes), byRank))
	const exactly = 1 - 1e-12 // 64.4 % of 250 are 161, which floats make a little more
	share := int(math.Ceil(percent * float64(len(nodes)) / 100 * exactly))
	if percent < 100 && share == len(nodes) && share > 1 {
		share--
	}
	for i, node := range nodes {
		if (i < share) != (rank(node) < percent) {
			excepted = append(excepted, node)
		}
	}
	slices.Sort(excepted)
	return excepted
}

// canary is the rollout of the newest revision while it lasts, nil if none does.
func (t *track) canary() *store.Rollout {
	if r := first(t.backward()).Rollout; r.Lasts() {
		return r
	}
	return nil
}

// of goes over the revisions that are for a proxy, the newest first.
func (t *track) of(node string) iter.Seq[*store.Summary] {
	return func(yield func(*store.Summary) bool) {
		canary := t.canary()
		for r := range t.backward() {
			if (canary == nil || r.Rollout != canary || reaches(canary, node)) && !yield(r) {
				return
			}
		}
	}
}

// isFor says whether a revision is one of these.
func (t *track) isFor(node string, number uint64) bool {
	for r := range t.of(node) {
		if r.Number == number {
			return true
		}
	}
	return false
}

// canaryRemark says that a proxy runs the revision of a canary.
func (s *session) canaryRemark() string {
	if s.track.canary() != nil && s.track.newest() == s.Runs {
		return ", in the canary"
	}
	return ""
}

// Choose returns the Except of a rollout: for the proxies of the policy that are connected now.
func (l *Ledger) Choose(policy string, percent float64) []string {
	var nodes []string
	for _, m := range l.Managed() {
		if m.Policy == policy {
			nodes = append(nodes, m.Node)
		}
	}
	return except(nodes, percent)
}

// Canary is a rollout that lasts, and how far its revision has come.
type Canary struct {
	store.Rollout
	Connected int      `json:"connected"`         // proxies that are to get it
	Runs      int      `json:"runs"`              // of these, how many run it
	Of        int      `json:"of"`                // connected proxies of the policy, in the canary or not
	Refused   []string `json:"refused,omitempty"` // that refused it
	Gone      []string `json:"gone,omitempty"`    // that ran it last, and are not connected
	Nacked    bool     `json:"-"`                 // some proxy refused it, of those that are known or not
}

// Canary returns the revision of a policy whose rollout lasts, 0 if none does.
func (l *Ledger) Canary(policy string) (number uint64, c Canary) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.policies.tracks[policy]
	r := t.canary()
	if r == nil {
		return 0, c
	}
	newest := first(t.backward())
	number = newest.Number
	c.Rollout, c.Nacked = *r, newest.Nacked
	for id, p := range l.proxies {
		if slices.Contains(p.known.Refused, number) {
			c.Refused = append(c.Refused, id.Node)
		}
		if len(p.sessions) == 0 && p.known.Acked == number {
			c.Gone = append(c.Gone, id.Node)
		}
		gets := func(s *session) bool { return s.Subscribed && s.track == t }
		if !p.has(gets) {
			continue
		}
		c.Of++
		if !reaches(r, id.Node) {
			continue
		}
		c.Connected++
		if !p.has(func(s *session) bool { return gets(s) && s.Runs != number }) {
			c.Runs++
		}
	}
	slices.Sort(c.Refused)
	slices.Sort(c.Gone)
	return number, c
}

// Canaries returns how many policies have a canary that stands so.
func (l *Ledger) Canaries(state store.RolloutState) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.policies.tracks {
		if r := t.canary(); r != nil && r.State == state {
			n++
		}
	}
	return n
}
