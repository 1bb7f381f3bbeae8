package xds

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Outcome is what became of a revision on a proxy.
type Outcome string

// What may have become of it.
const (
	Waiting      Outcome = "waiting"      // no reply yet
	Disconnected Outcome = "disconnected" // gone before it replied
	Acked        Outcome = "acked"
	Superseded   Outcome = "superseded" // a newer revision came before this one was sent
	Withheld     Outcome = "withheld"   // refused elsewhere, so this proxy was not asked
	Unsent       Outcome = "unsent"     // it could not be written for this proxy
	Nacked       Outcome = "nacked"
)

// severity orders outcomes of several sessions of one proxy: the worst counts.
var severity = map[Outcome]int{Acked: 1, Superseded: 2, Withheld: 3, Unsent: 4, Nacked: 5, Waiting: 6, Disconnected: 7}

func (o Outcome) isFinal() bool { return o != Waiting && o != Disconnected }

// ProxyOutcome is the outcome of one revision on one proxy.
type ProxyOutcome struct {
	SAN      string  `json:"san,omitempty"` // name in its certificate that grants the node id
	Node     string  `json:"node"`
	Shared   bool    `json:"shared,omitempty"` // another connected proxy has the same node id
	Revision uint64  `json:"revision"`
	Outcome  Outcome `json:"outcome"`
	Text     string  `json:"text,omitempty"` // the proxy's words, or why nothing was sent
	// Fallback is the revision a proxy that refused this one gets instead: its
	// last good one, 0 if there is none.
	Fallback uint64 `json:"fallback,omitempty"`
}

func (o ProxyOutcome) id() store.Identity { return store.Identity{SAN: o.SAN, Node: o.Node} }

// Follow reports the outcome of every connected proxy on a revision as it
// comes, until all are in or ctx ends. It returns the missing ones; a proxy that
// went away without a reply is one of them.
func (l *Ledger) Follow(ctx context.Context, number uint64, report func(ProxyOutcome)) []ProxyOutcome {
	expected := map[store.Identity]ProxyOutcome{} // not yet reported
	reported := map[store.Identity]bool{}
	var t *track
	for {
		changed := l.changes()
		current, known := l.outcomes(&t, number)
		for id := range expected {
			if _, ok := current[id]; !ok && l.hasLeft(id, t) {
				delete(expected, id)
			} else if !ok {
				gone := expected[id]
				gone.Outcome = Disconnected
				expected[id] = gone
			}
		}
		for _, id := range slices.SortedFunc(maps.Keys(current), store.Identity.Compare) {
			switch o := current[id]; {
			case reported[id]:
			case o.Outcome.isFinal():
				report(o)
				reported[id] = true
				delete(expected, id)
			default:
				expected[id] = o
			}
		}
		if known && len(expected) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return slices.SortedFunc(maps.Values(expected), func(a, b ProxyOutcome) int { return a.id().Compare(b.id()) })
		case <-changed:
			pause(ctx)
		}
	}
}

// lookEvery is how often Follow looks at all proxies: a look for each reply of a
// fleet would be quadratic.
const lookEvery = 10 * time.Millisecond

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lookEvery):
	}
}

// hasLeft says whether the proxy is connected, and another policy than the track's is for
// it by now.
func (l *Ledger) hasLeft(id store.Identity, from *track) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.proxies[id]
	return p != nil && len(p.sessions) > 0 && !p.has(func(s *session) bool { return s.track == from })
}

// outcomes returns the outcome at every proxy that is connected, of the revision's policy,
// and asks for it or for what is not served. It finds the policy's track once; known is
// false before the ledger has seen the revision.
func (l *Ledger) outcomes(of **track, number uint64) (outcomes map[store.Identity]ProxyOutcome, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if *of == nil {
		*of = l.trackOf(number)
	}
	all := map[store.Identity]ProxyOutcome{}
	connected := map[string]int{} // by node id
	for id, p := range l.proxies {
		if len(p.sessions) > 0 {
			connected[id.Node]++
		}
	}
	for id, p := range l.proxies {
		for _, s := range p.sessions {
			if s.track != *of || !p.isAsked(s, number) {
				continue
			}
			o := p.outcome(s, number)
			o.SAN, o.Node = id.SAN, id.Node
			o.Shared = connected[id.Node] > 1
			if severity[o.Outcome] > severity[all[id].Outcome] {
				all[id] = o
			}
		}
	}
	return all, *of != nil || number <= l.last
}

// isAsked says whether a session counts for a revision of its policy: it asks for the policy
// or for what is not served, and no canary leaves it out.
func (p *proxy) isAsked(s *session, number uint64) bool {
	isLeftOut := s.track.newest() == number && s.track.newestOf(s.stance) != number
	return (s.Subscribed || p.strays()) && !isLeftOut
}

// outcome is that of a revision on one session of the proxy.
func (p *proxy) outcome(s *session, number uint64) ProxyOutcome {
	o := ProxyOutcome{Revision: number, Outcome: s.outcome(number)}
	switch o.Outcome {
	case Nacked:
		o.Text = p.known.NackText
		if good := s.track.offer(s.stance); good < number {
			o.Fallback = good // else a newer revision is there by now
		}
		return o
	case Unsent:
		o.Text = s.Problem
	default: // nothing to add
	}
	if names := p.unserved(); o.Text == "" && len(names) > 0 {
		o.Text = asksFor(names) // a filter of this proxy has no policy
	}
	return o
}

func (s *session) outcome(number uint64) Outcome {
	if !s.Subscribed {
		return Unsent
	}
	want := s.track.offer(s.stance)
	of := s.track.find(number)
	switch accepted, ok := s.Replies[number]; {
	case ok && !accepted:
		return Nacked
	case ok && (want != number || s.Holds == number):
		return Acked // else it is about to get it again
	case s.isAhead() && s.Ahead >= number, of != nil && of.Rollout.IsAborted():
		return Superseded
	}
	if s.track.newest() < number || s.InFlight {
		return Waiting
	}
	switch {
	case s.Holds == number:
		return Acked // its reply is not among those that another control plane tells of
	case want != 0 && want == s.Unsendable:
		return Unsent
	case want != 0 && want != s.Holds:
		return Waiting // about to be pushed
	case s.track.newest() > number:
		return Superseded
	default:
		return Withheld
	}
}
