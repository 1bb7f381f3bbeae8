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

// severity says which outcome counts of a proxy with several sessions: the highest. One that is not
// final is higher than any that is, so a proxy is reported once all its sessions have one.
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
	f := follower{
		ledger: l, number: number, report: report,
		missing: map[store.Identity]ProxyOutcome{}, reported: map[store.Identity]bool{},
	}
	for {
		changed := l.changes() // taken before looking, so that no change falls in between
		if f.look() {
			return nil
		}
		select {
		case <-ctx.Done():
			byID := func(a, b ProxyOutcome) int { return a.id().Compare(b.id()) }
			return slices.SortedFunc(maps.Values(f.missing), byID)
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

// follower follows one revision.
type follower struct {
	ledger   *Ledger
	number   uint64
	report   func(ProxyOutcome)
	track    *track                          // the revision's, nil as long as the ledger has not seen it
	missing  map[store.Identity]ProxyOutcome // not final yet, as of the last look
	reported map[store.Identity]bool
}

// look reports the outcomes that have become final, and says whether all are.
func (f *follower) look() (all bool) {
	current, isKnown := f.outcomes()
	for id, o := range f.missing {
		if _, ok := current[id]; ok {
			continue
		}
		o.Outcome = Disconnected
		f.missing[id] = o
		if f.hasLeft(id) {
			delete(f.missing, id)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(current), store.Identity.Compare) {
		switch o := current[id]; {
		case f.reported[id]:
		case o.Outcome.isFinal():
			f.report(o)
			f.reported[id] = true
			delete(f.missing, id)
		default:
			f.missing[id] = o
		}
	}
	return isKnown && len(f.missing) == 0
}

// hasLeft says whether the proxy is connected, and another policy is for it by now.
func (f *follower) hasLeft(id store.Identity) bool {
	f.ledger.mu.Lock()
	defer f.ledger.mu.Unlock()
	p := f.ledger.proxies[id]
	return p != nil && len(p.sessions) > 0 && !p.has(func(s *session) bool { return s.track == f.track })
}

// outcomes returns the outcome at every proxy of the revision's policy that is connected and
// asks for it. isKnown is false before the ledger has seen the revision.
func (f *follower) outcomes() (all map[store.Identity]ProxyOutcome, isKnown bool) {
	l := f.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.track == nil {
		f.track = l.policies.trackOf(f.number)
	}
	connected := map[string]int{} // by node id
	for id, p := range l.proxies {
		if len(p.sessions) > 0 {
			connected[id.Node]++
		}
	}
	all = map[store.Identity]ProxyOutcome{}
	for id, p := range l.proxies {
		for _, s := range p.sessions {
			if s.track != f.track || !p.isAsked(s, f.number) {
				continue
			}
			o := p.outcome(s, f.number)
			o.SAN, o.Node = id.SAN, id.Node
			o.Shared = connected[id.Node] > 1
			if severity[o.Outcome] > severity[all[id].Outcome] {
				all[id] = o
			}
		}
	}
	return all, f.track != nil || f.number <= l.policies.last
}

// isAsked says whether a session counts for a revision of its policy: it asks for the policy
// or for what is not served, and no canary leaves it out.
func (p *proxy) isAsked(s *session, number uint64) bool {
	isLeftOut := s.track.newest() == number && s.newest() != number
	return (s.Subscribed || p.strays()) && !isLeftOut
}

// outcome is that of a revision on one session of the proxy.
func (p *proxy) outcome(s *session, number uint64) ProxyOutcome {
	o := ProxyOutcome{Revision: number, Outcome: s.outcome(number)}
	switch o.Outcome {
	case Nacked:
		o.Text = p.known.NackText
		if good := s.offered(); good < number {
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

// outcome says what became of a revision on the session: by its replies, else by what it
// holds and is offered now. For example of revision 8 after 7, by the first row that fits:
//
//	                                        reply to 8  offered         Holds
//	asks for no policy                                                         Unsent
//	refused 8                               NACK        7               7      Nacked
//	accepted 8                              ACK         8               8      Acked
//	accepted 8, refused 9, gets 8 again     ACK         8               0      Waiting
//	runs 9, which is not here; or 8 is aborted                                 Superseded
//	8 is not here yet; or a push is in flight                                  Waiting
//	told by another control plane           -           8               8      Acked
//	cannot be sent 8                        -           8 = Unsendable  7      Unsent
//	is to be sent 8 or 9                    -           8 or 9          7      Waiting
//	was sent 9 before 8                     -           9               9      Superseded
//	is not sent 8, as others refused it     -           7               7      Withheld
func (s *session) outcome(number uint64) Outcome {
	if !s.Subscribed {
		return Unsent
	}
	offered := s.offered()
	if accepted, hasReplied := s.Replies[number]; hasReplied {
		getsItAgain := offered == number && s.Holds != number
		switch {
		case !accepted:
			return Nacked
		case !getsItAgain:
			return Acked
		}
	}
	of := s.track.find(number)
	isAborted := of != nil && of.Rollout.IsAborted()
	switch {
	case s.Ahead >= number && s.isAhead(), isAborted:
		return Superseded
	case s.track.newest() < number, s.InFlight:
		return Waiting
	case s.Holds == number:
		return Acked // its reply is not among those that another control plane tells of
	case offered != 0 && offered == s.Unsendable:
		return Unsent
	case offered != 0 && offered != s.Holds:
		return Waiting // about to be pushed
	case s.track.newest() > number:
		return Superseded
	}
	return Withheld
}
