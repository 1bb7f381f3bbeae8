package xds

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// policies are the tracks of all policies, as the store had them when refresh read it last. The ledger's mu
// guards them.
type policies struct {
	tracks map[string]*track // by policy, always with the default
	named  []*track          // those for some proxies, by name
	lost   []uint64          // damaged revisions of unknown policies, ascending
	last   uint64            // the highest number that the store had given
}

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
	l.policies.last = max(l.policies.last, last)
	// Read now, so that damage is known before a proxy needs the revision. Other errors show when it is pushed.
	isDamaged := func(number uint64) bool {
		_, err := l.store.Get(ctx, number)
		return errors.Is(err, store.ErrDamaged)
	}
	if l.policies.replace(list, isDamaged) {
		l.reassign()
	}
	l.broadcastOffers()
	return nil
}

// replace replaces the revisions of all policies by those of the store, the newest first. It reports
// whether some policy is for other proxies than before.
func (p *policies) replace(list []store.Summary, isDamaged func(number uint64) bool) (moved bool) {
	before := map[string]track{}
	for name, t := range p.tracks {
		before[name] = *t
		t.revisions, t.before = nil, t.newest()
	}
	p.lost = nil
	p.track(store.DefaultPolicy)
	for _, s := range slices.Backward(list) {
		if s.Damaged {
			p.lost = append(p.lost, s.Number)
			continue
		}
		was, t := before[s.Policy], p.track(s.Policy)
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
			s.Damaged = isDamaged(s.Number)
		}
		t.revisions = append(t.revisions, s)
	}
	isForOthers := func(t *track) bool { return t.proxies() == nil }
	p.named = slices.DeleteFunc(slices.Collect(maps.Values(p.tracks)), isForOthers)
	slices.SortFunc(p.named, func(a, b *track) int { return cmp.Compare(a.name, b.name) })
	for name, t := range p.tracks {
		was := before[name]
		moved = moved || !t.proxies().Equal(was.proxies())
	}
	return moved
}

// track returns a policy's track, and makes it if need be.
func (p *policies) track(policy string) *track {
	t := p.tracks[policy]
	if t == nil {
		t = &track{name: policy}
		p.tracks[policy] = t
	}
	return t
}

// trackOf returns the track that has the revision, nil if none has.
func (p *policies) trackOf(number uint64) *track {
	for _, t := range p.tracks {
		if t.find(number) != nil {
			return t
		}
	}
	return nil
}

// assign returns the track of the policy that is for the proxy. No two policies with selectors are
// for the same proxy, unless damage to a revision brings back an older one that selects others:
// then the first policy by name is taken.
func (p *policies) assign(place *selector.Proxy) *track {
	for _, t := range p.named {
		if t.proxies().Match(place) {
			return t
		}
	}
	return p.tracks[store.DefaultPolicy]
}

// isUntaken says whether there are policies, but none selects the session's proxy.
func (p *policies) isUntaken(s *session) bool {
	return s.track != nil && s.track.newest() == 0 && len(p.named) > 0
}

// damagedOf returns the revisions of a policy that are damaged, "" for all, and those of which not even
// the policy is known.
func (p *policies) damagedOf(policy string) []uint64 {
	list := slices.Clone(p.lost)
	for name, t := range p.tracks {
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

// reassign gives proxies the policy that is for them. The caller holds mu.
func (l *Ledger) reassign() {
	for _, p := range l.proxies {
		for _, s := range p.sessions {
			if t := l.policies.assign(&s.Place); t != s.track {
				// A revision that moves a proxy to its policy asks it, as one that was there.
				s.track = t
				s.Since, s.Misses = t.before, 0
			}
		}
	}
}

// Untaken returns how many connected proxies want a policy, but no policy selects them.
func (l *Ledger) Untaken() int {
	return l.count(func(_ *proxy, s *session) bool { return s.Subscribed && l.policies.isUntaken(s) })
}

// Policies returns the names of all policies with a revision, sorted.
func (l *Ledger) Policies() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	stands := func(r store.Summary) bool { return !r.Rollout.IsAborted() }
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l.policies.tracks)), func(name string) bool {
		return !slices.ContainsFunc(l.policies.tracks[name].revisions, stands)
	})
}

// Takers returns which proxies policies are for, by name, and the highest number that the store
// had given by then.
func (l *Ledger) Takers() (takers map[string]*selector.Selector, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	takers = map[string]*selector.Selector{}
	for _, t := range l.policies.named {
		takers[t.name] = t.proxies()
	}
	return takers, l.policies.last
}
