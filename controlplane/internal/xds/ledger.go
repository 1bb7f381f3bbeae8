package xds

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// forgetAfter is how long a proxy that is gone stays in the ledger.
const forgetAfter = time.Hour

// maxReplies bounds what a session remembers of its own replies.
const maxReplies = 64

// maxProxies bounds the proxies that are remembered, here and in the store.
const maxProxies = 10_000

// Ledger knows which proxies are connected, what was pushed to them and how they
// replied. Its methods lie with what they are about:
//
//	ledger.go     sessions, from open over subscribe, wanted and record to close
//	assign.go     policies are the store's, as refresh reads them; assign finds the one that is for a proxy
//	canary.go     Canary, Canaries; Choose for one that begins
//	follow.go     Damaged and withdraw; removeOutdated for the store
//	elsewhere.go  what other control planes tell of their proxies
//	status.go     asks, and what the API shows: Proxies, Newest, ForNewProxy, Behind, Ahead, Managed
//	outcome.go    Follow reports what becomes of one revision
type Ledger struct {
	store store.Store

	mu         sync.Mutex // guards all below
	policies   policies
	proxies    map[store.Identity]*proxy
	maxProxies int               // that are remembered, unless more are connected
	heard      map[string][]byte // what others told last, by control plane and part
	parts      int               // in which others are told
	now        func() time.Time
	changed    chan struct{} // closed and replaced at every change
	moved      chan struct{} // the same, where other sessions' offers may change
}

// proxy is one identity: usually one process, two during a hot restart.
type proxy struct {
	known    store.Proxy // by its replies
	sessions map[uint64]*session
	gone     time.Time // since when it has no session
	last     session   // the latest session, for status once it is gone
}

// session is one stream. Only the goroutine of that stream pushes on it. It reads id, node, Peer and
// Connected, which never change, without the ledger's mu; that guards all others.
type session struct {
	id        uint64
	elsewhere bool   // it has its stream at another control plane, which tells of it
	track     *track // what it is offered
	facts
}

// facts of a session. Other control planes are told them as JSON.
type facts struct {
	node
	stance // what decides which revision it is offered

	// What it asks for.
	Peer       string
	Connected  time.Time
	Subscribed bool     `json:",omitzero"` // it wants the policy
	Unserved   []string `json:",omitzero"` // what else it asks for, at most maxUnserved
	Stranger   bool     `json:",omitzero"` // it came with a policy that is not served here, or not any more

	// What it runs and what was pushed to it are revisions, 0 for none. For example, a proxy that runs 7:
	//
	//	                              Runs  Holds  Acked  Pushed  InFlight  Refused
	//	8 is pushed                      7      7      7       8  yes
	//	it refuses 8 (NACK)              7      0      7       8            8
	//	7 is pushed, to withdraw 8       7      0      7       7  yes       8
	//	it accepts 7 (ACK)               7      7      7       7            8
	//	9 is pushed                      7      7      7       9  yes       8
	//	it accepts 9 (ACK)               9      9      9       9
	//
	// Acked and Refused are of its stance. They begin as proxy.known has them, by the replies of all
	// the proxy's sessions; Runs begins with what the proxy itself reports.

	// What it runs.
	Runs  uint64 `json:",omitzero"` // the one that it accepted or reported last
	Holds uint64 `json:",omitzero"` // Runs, or 0 if that must be pushed again
	Ahead uint64 `json:",omitzero"` // a newer one of this store that it came with and that is not here

	// What was pushed to it.
	Pushed     uint64          `json:",omitzero"` // the revision pushed last
	InFlight   bool            `json:",omitzero"` // its reply is still to come
	Replies    map[uint64]bool `json:",omitzero"` // by revision, the latest: true for an ACK
	Unsendable uint64          `json:",omitzero"` // the revision that could not be written as a resource
	Problem    string          `json:",omitzero"` // why
}

func newLedger(ctx context.Context, s store.Store) (*Ledger, error) {
	l := &Ledger{
		store: s, policies: policies{tracks: map[string]*track{}},
		proxies: map[store.Identity]*proxy{}, maxProxies: maxProxies,
		now: time.Now, changed: make(chan struct{}), moved: make(chan struct{}),
	}
	return l, l.refresh(ctx)
}

// broadcast wakes all that wait on changes. The caller holds mu.
func (l *Ledger) broadcast() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// broadcastOffers also wakes the sessions. Most changes concern one session and
// Follow; waking a whole fleet for each of its replies would make a roll-out
// quadratic.
func (l *Ledger) broadcastOffers() {
	close(l.moved)
	l.moved = make(chan struct{})
	l.broadcast()
}

// change changes a session, and wakes all that wait on changes.
func (l *Ledger) change(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.broadcast()
}

// moves is changes for sessions: a channel that is closed when what they are
// offered may have changed.
func (l *Ledger) moves() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// changes returns a channel that is closed at the next change. Take it before
// looking, so that nothing is missed in between.
func (l *Ledger) changes() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// open adds a session for a stream. It returns the proxies that it dropped to stay within
// maxProxies; the caller forgets them.
func (l *Ledger) open(id uint64, n node, peer string) (s *session, dropped []store.Identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	who := n.who()
	p := l.proxies[who]
	if p == nil {
		for len(l.proxies) >= l.maxProxies {
			gone := l.dropLongestGone()
			if gone.Node == "" {
				break
			}
			dropped = append(dropped, gone)
		}
		p = &proxy{known: store.Proxy{SAN: who.SAN, Node: who.Node}, sessions: map[uint64]*session{}}
		l.proxies[who] = p
	}
	s = &session{id: id, facts: facts{node: n, Peer: peer, Connected: l.now().UTC(), Replies: map[uint64]bool{}}}
	s.track = l.policies.assign(&s.Place)
	hasMoved := func(_ uint64, old *session) bool { return old.elsewhere && host(old.Peer) == host(peer) }
	maps.DeleteFunc(p.sessions, hasMoved)
	p.sessions[id] = s
	p.gone = time.Time{}
	l.broadcast()
	return s, dropped
}

// dropLongestGone makes room for a proxy, if any is gone: fewer are connected here than
// may be known, but others are connected elsewhere.
func (l *Ledger) dropLongestGone() store.Identity {
	var longest store.Identity
	for id, p := range l.proxies {
		if len(p.sessions) == 0 && (longest.Node == "" || p.gone.Before(l.proxies[longest].gone)) {
			longest = id
		}
	}
	delete(l.proxies, longest)
	return longest
}

// close removes a session.
func (l *Ledger) close(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.proxies[s.who()]
	delete(p.sessions, s.id)
	p.last = *s
	if len(p.sessions) == 0 {
		p.gone = l.now()
	}
	l.heard = nil // hearOf may have put aside a session elsewhere that counts now
	l.broadcast()
}

// knownOf returns what is known of the session's proxy, and the highest number that the
// store has given.
func (l *Ledger) knownOf(s *session) (known store.Proxy, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proxies[s.who()].known, l.policies.last
}

// subscribe notes that the session wants the policy and holds a revision, 0 for
// none, or one ahead of all here. To a fresh process, even what it refused is offered. It
// reports whether a policy is for the proxy.
func (l *Ledger) subscribe(s *session, holds, ahead uint64, fresh bool) (taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.proxies[s.who()].known
	s.Subscribed = true
	s.stance = stance{Acked: known.Acked, Since: s.track.newest()}
	s.Ahead, s.Runs = ahead, max(holds, ahead)
	s.Stranger = !fresh && s.Runs == 0
	if !fresh {
		s.Refused = slices.Clone(known.Refused)
		if known.Unsettled {
			s.Misses, holds = 1, 0
		}
	}
	s.Holds = holds
	if s.Runs > 0 {
		s.keepReply(s.Runs, true)
	}
	l.broadcast()
	return !l.policies.isUntaken(s)
}

// wanted says which revision to push to the session now, 0 for none, and whether that
// withdraws a refused one.
func (l *Ledger) wanted(s *session) (number uint64, withdrawal bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.Subscribed || s.InFlight || s.isAhead() {
		return 0, false
	}
	number = s.offered()
	if number == s.Holds || number == s.Unsendable {
		return 0, false
	}
	return number, s.hasRefused(s.track.newest()) && s.Misses > 0
}

// record records a proxy's reply to a revision, in the store and here: for the proxy, for the
// revision and for the session. toPush says that it is to the push in flight; else the
// proxy reports what it runs, as its reply was lost with an earlier connection. The error
// is the store's; the reply counts here all the same.
func (l *Ledger) record(ctx context.Context, s *session, r store.Reply, toPush bool) error {
	r.SAN, r.Node = s.Place.SAN, s.Place.Node
	r.At = l.now().UTC()
	// It counts even if the proxy hung up right after it.
	err := l.store.SaveReply(context.WithoutCancel(ctx), r)
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.proxies[s.who()]
	p.known = p.known.After(r)
	s.InFlight = s.InFlight && !toPush
	s.apply(r)
	if l.policies.trackOf(r.Revision).mark(r) {
		l.broadcastOffers()
	} else {
		l.broadcast()
	}
	return err
}

// apply changes what the session runs and is offered by its reply.
func (s *session) apply(r store.Reply) {
	refused := s.Refused
	after := store.Proxy{Acked: s.Acked, Refused: refused}.After(r)
	s.Acked, s.Refused = after.Acked, after.Refused
	s.Ahead = 0
	s.keepReply(r.Revision, r.Accepted)
	if r.Accepted {
		s.Runs, s.Holds = r.Revision, r.Revision
		s.Misses = 0
		return
	}
	s.Holds = 0
	s.Misses++
	if len(refused) == 0 || r.Revision > slices.Max(refused) {
		s.Misses = 1 // a new revision, counted anew
	}
}

func (s *session) keepReply(number uint64, accepted bool) {
	s.Replies[number] = accepted
	if len(s.Replies) > maxReplies {
		delete(s.Replies, slices.Min(slices.Collect(maps.Keys(s.Replies))))
	}
}

// forget drops proxies that have been gone for forgetAfter.
func (l *Ledger) forget(ctx context.Context, now time.Time) error {
	l.mu.Lock()
	var gone []store.Identity
	for id, p := range l.proxies {
		if len(p.sessions) == 0 && now.Sub(p.gone) >= forgetAfter {
			gone = append(gone, id)
			delete(l.proxies, id)
		}
	}
	l.mu.Unlock()
	return l.forgetStored(ctx, gone)
}

// forgetStored drops proxies from the store that the ledger has dropped.
func (l *Ledger) forgetStored(ctx context.Context, ids []store.Identity) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, l.store.Forget(ctx, id))
	}
	return errors.Join(errs...)
}
