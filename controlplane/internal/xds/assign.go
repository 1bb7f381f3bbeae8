package xds

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// refresh reads the list of revisions again, and gives each proxy the policy that it has
// by now.
func (l *Ledger) refresh(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, err := l.store.Last(ctx)
	if err != nil {
		return err
	}
	list, err := l.store.History(ctx, "", 0)
	if err != nil {
		return err
	}
	if err := l.recall(ctx); err != nil {
		return err
	}
	before := map[string]track{}
	for name, t := range l.tracks {
		before[name] = *t
		t.revisions, t.before = nil, t.newest()
	}
	l.lost, l.last = nil, max(l.last, last)
	l.track(store.DefaultPolicy)
	for _, s := range slices.Backward(list) {
		if s.Damaged {
			l.lost = append(l.lost, s.Number)
			continue
		}
		was, t := before[s.Policy], l.track(s.Policy)
		known := was.find(s.Number)
		if known != nil { // what the store failed to keep stays here
			s.Acked, s.Nacked = s.Acked || known.Acked, s.Nacked || known.Nacked
		}
		switch {
		case s.Rollout.IsAborted(): // no proxy gets it, whole or not
			s.Damaged = false
		case known != nil:
			s.Damaged = known.Damaged
		default:
			s.Damaged = l.isDamaged(ctx, s.Number)
		}
		t.revisions = append(t.revisions, s)
	}
	l.reassign(before)
	l.broadcastOffers()
	return nil
}

// track returns a policy's track, and makes it if need be.
func (l *Ledger) track(policy string) *track {
	t := l.tracks[policy]
	if t == nil {
		t = &track{name: policy}
		l.tracks[policy] = t
	}
	return t
}

// trackOf returns the track that has the revision, nil if none has.
func (l *Ledger) trackOf(number uint64) *track {
	for _, t := range l.tracks {
		if t.find(number) != nil {
			return t
		}
	}
	return nil
}

// reassign gives proxies the policy that is for them, where any policy is for others than
// before. The caller holds mu.
func (l *Ledger) reassign(before map[string]track) {
	l.named = slices.DeleteFunc(slices.Collect(maps.Values(l.tracks)), func(t *track) bool { return t.proxies() == nil })
	slices.SortFunc(l.named, func(a, b *track) int { return cmp.Compare(a.name, b.name) })
	same := true
	for name, t := range l.tracks {
		was := before[name]
		same = same && t.proxies().Equal(was.proxies())
	}
	if same {
		return
	}
	for _, p := range l.proxies {
		for _, s := range p.sessions {
			if t := l.assign(&s.Place); t != s.track {
				// A revision that moves a proxy to its policy asks it, as one that was there.
				s.track = t
				s.Since, s.Misses = t.before, 0
			}
		}
	}
}

// assign returns the track of the policy that is for the proxy. No two policies with selectors are
// for the same proxy, unless damage to a revision brings back an older one that selects others:
// then the first policy by name is taken.
func (l *Ledger) assign(p *selector.Proxy) *track {
	for _, t := range l.named {
		if t.proxies().Match(p) {
			return t
		}
	}
	return l.tracks[store.DefaultPolicy]
}

// isUntaken says whether there are policies, but none selects the session's proxy.
func (l *Ledger) isUntaken(s *session) bool {
	return s.track != nil && s.track.newest() == 0 && len(l.named) > 0
}

// Untaken returns how many connected proxies want a policy, but no policy selects them.
func (l *Ledger) Untaken() int {
	return l.count(func(_ *proxy, s *session) bool { return s.Subscribed && l.isUntaken(s) })
}

// Policies returns the names of all policies with a revision, sorted.
func (l *Ledger) Policies() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l.tracks)), func(name string) bool {
		return !slices.ContainsFunc(l.tracks[name].revisions, func(r store.Summary) bool { return !r.Rollout.IsAborted() })
	})
}

// Takers returns which proxies policies are for, by name, and the highest number that the store
// had given by then.
func (l *Ledger) Takers() (takers map[string]*selector.Selector, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	takers = map[string]*selector.Selector{}
	for _, t := range l.named {
		takers[t.name] = t.proxies()
	}
	return takers, l.last
}
