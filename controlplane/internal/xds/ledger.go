package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// forgetAfter is how long a proxy that is gone stays in the ledger.
const forgetAfter = time.Hour

// maxReplies bounds what a session remembers of its own replies.
const maxReplies = 64

// Ledger knows which proxies are connected, what was pushed to them and how they
// replied.
type Ledger struct {
	store store.Store

	mu           sync.Mutex
	tracks       map[string]*track // by policy, always with the default
	named        []*track          // those for some proxies, by name
	lost         []uint64          // damaged revisions of which not even the policy is known, ascending
	last         uint64            // the highest number that the store had given
	proxies      map[store.Identity]*proxy
	heard        map[string][]byte // what others told last, by control plane and part
	parts        int               // in which others are told
	streams      int               // open ones, with a session or still without
	streamsOf    map[string]int    // the same by origin
	maxStreams   int               // of all, and proxies that are known
	maxStreamsOf int               // of one origin, and of one proxy
	now          func() time.Time
	era          uint64        // how often proxies were forgotten; see payload
	changed      chan struct{} // closed and replaced at every change
	moved        chan struct{} // the same, where other sessions' offers may change
}

// proxy is one identity: usually one process, two during a hot restart.
type proxy struct {
	known     store.Proxy
	sessions  map[uint64]*session
	gone      time.Time         // since when it has no session
	pushes    map[uint64]uint64 // by revision, how often this process pushed it; see payload
	dropped   uint64            // the newest revision that is no longer in pushes
	maxPushes uint64            // the highest count of such a revision
	last      session           // the latest session, for status once it is gone
}

// session is one stream. Only the goroutine of that stream pushes on it.
type session struct {
	id        uint64
	who       store.Identity
	elsewhere bool // it has its stream at another control plane, which tells of it
	node      node
	place     selector.Proxy
	track     *track // what it is offered
	peer      string
	connected time.Time

	subscribed bool
	unserved   []string // what else it asks for, at most maxUnserved
	stranger   bool     // it came with a policy that is not served here, or not any more
	stance     stance
	ahead      uint64 // it came with this newer revision of the store, which is not here; 0 since it has another
	runs       uint64 // the revision it accepted or reported last, 0 if none
	holds      uint64 // runs, or 0 if that must be pushed again
	pushed     uint64
	inFlight   bool
	unsendable uint64 // the revision that could not be written as a resource
	problem    string // why
	replies    map[uint64]bool
}

func newLedger(ctx context.Context, s store.Store) (*Ledger, error) {
	l := &Ledger{
		store: s, tracks: map[string]*track{}, proxies: map[store.Identity]*proxy{}, streamsOf: map[string]int{},
		maxStreams: maxProxies, maxStreamsOf: maxProxies / share,
		now: time.Now, changed: make(chan struct{}), moved: make(chan struct{}),
	}
	known, err := s.Proxies(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range known {
		p := newProxy(k)
		p.gone = l.now()
		l.proxies[k.ID()] = p
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

// open adds a session for a stream that admit let in, unless its proxy has as many
// as one address may have. It returns the proxies that it dropped to stay within
// maxStreams; the caller forgets them.
func (l *Ledger) open(id uint64, who store.Identity, n node, peer string) (s *session, dropped []store.Identity, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.proxies[who]
	if p != nil && len(p.sessions) >= l.maxStreamsOf {
		return nil, nil, fmt.Errorf("%d streams of %s are open, no more are served of one proxy", len(p.sessions), who.Node)
	}
	if p == nil {
		for len(l.proxies) >= l.maxStreams {
			gone := l.dropLongestGone()
			if gone.Node == "" {
				break
			}
			dropped = append(dropped, gone)
		}
		p = newProxy(store.Proxy{SAN: who.SAN, Node: who.Node})
		l.proxies[who] = p
	}
	s = &session{id: id, who: who, node: n, place: n.place(who), peer: peer, connected: l.now(), replies: map[uint64]bool{}}
	s.track = l.assign(&s.place)
	maps.DeleteFunc(p.sessions, func(_ uint64, old *session) bool { return old.elsewhere && host(old.peer) == host(peer) }) // it has moved here
	p.sessions[id] = s
	p.gone = time.Time{}
	l.broadcast()
	return s, dropped, nil
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
	l.era++
	return longest
}

// close removes a session.
func (l *Ledger) close(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.proxies[s.who]
	delete(p.sessions, s.id)
	p.last = *s
	if len(p.sessions) == 0 {
		p.gone = l.now()
	}
	l.heard = nil // hearOf may have put aside a session elsewhere that counts now
	l.broadcast()
}

// knownOf returns what is known of the session's proxy.
func (l *Ledger) knownOf(s *session) store.Proxy {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proxies[s.who].known
}

// subscribe notes that the session wants the policy and holds a revision, 0 for
// none, or one ahead of all here. To a fresh process, even what it refused is offered. It reports whether
// a policy is for the proxy.
func (l *Ledger) subscribe(s *session, holds, ahead uint64, fresh bool) (taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.proxies[s.who].known
	s.subscribed = true
	s.stance = stance{acked: known.Acked, since: s.track.newest(), node: s.who.Node}
	s.ahead, s.runs = ahead, max(holds, ahead)
	s.stranger = !fresh && s.runs == 0
	if !fresh {
		s.stance.refused = slices.Clone(known.Refused)
		if known.Unsettled {
			s.stance.misses, holds = 1, 0
		}
	}
	s.holds = holds
	if s.runs > 0 {
		s.note(s.runs, true)
	}
	l.broadcast()
	return !l.isUntaken(s)
}

func (l *Ledger) unsubscribe(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.subscribed = false
	l.broadcast()
}

// wanted says which revision to push to the session now, if any.
func (l *Ledger) wanted(s *session) (number uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.want(s)
}

// want is wanted for callers that hold mu.
func (l *Ledger) want(s *session) (number uint64, ok bool) {
	if !s.subscribed || s.inFlight || s.isAhead() {
		return 0, false
	}
	number = s.track.offer(s.stance)
	return number, number != 0 && number != s.holds && number != s.unsendable
}

// due is a push to make.
type due struct {
	number     uint64
	withdrawal bool   // of a refused revision
	era, times uint64 // the tag of its payload
}

// startPush returns the push to make to the session now, if any, and counts it.
func (l *Ledger) startPush(s *session) (d due, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number, ok := l.want(s)
	if !ok {
		return d, false
	}
	return due{
		number: number, withdrawal: s.stance.hasRefused(s.track.newest()) && s.stance.misses > 0,
		era: l.era, times: l.proxies[s.who].countPush(number),
	}, true
}

// sent notes a push. Until the proxy replies there is no other one.
func (l *Ledger) sent(s *session, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.pushed, s.inFlight = number, true
	s.unsendable, s.problem = 0, ""
	l.broadcast()
}

// unsent notes that a revision could not be written for this proxy.
func (l *Ledger) unsent(s *session, number uint64, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.unsendable, s.problem = number, why.Error()
	l.broadcast()
}

// replied notes the reply to the push in flight. The error is the store's; the
// reply counts in the ledger all the same.
func (l *Ledger) replied(ctx context.Context, s *session, a store.Reply) error {
	// The reply counts even if the proxy hung up right after it.
	err := l.store.SaveReply(context.WithoutCancel(ctx), a)
	l.mu.Lock()
	defer l.mu.Unlock()
	s.inFlight = false
	l.settle(s, a)
	return err
}

// reported notes that a proxy holds a revision which it was not known to have
// accepted: its reply was lost with an earlier connection.
func (l *Ledger) reported(ctx context.Context, s *session, number uint64) error {
	a := store.Reply{SAN: s.who.SAN, Node: s.who.Node, Revision: number, Accepted: true, At: l.now().UTC()}
	err := l.store.SaveReply(ctx, a)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(s, a)
	return err
}

func (l *Ledger) settle(s *session, a store.Reply) {
	p := l.proxies[s.who]
	p.known = p.known.After(a)
	if l.trackOf(a.Revision).settle(a) {
		defer l.broadcastOffers()
	}
	s.ahead = 0
	s.note(a.Revision, a.Accepted)
	before := s.stance.refused
	mine := store.Proxy{Acked: s.stance.acked, Refused: before}.After(a)
	s.stance.acked, s.stance.refused = mine.Acked, mine.Refused
	switch {
	case a.Accepted:
		s.runs, s.holds, s.stance.misses = a.Revision, a.Revision, 0
	case len(before) == 0 || a.Revision > slices.Max(before):
		s.holds, s.stance.misses = 0, 1 // a new revision, counted anew
	default:
		s.holds = 0
		s.stance.misses++
	}
	l.broadcast()
}

func newProxy(known store.Proxy) *proxy {
	return &proxy{known: known, sessions: map[uint64]*session{}, pushes: map[uint64]uint64{}}
}

// countPush counts a push of the revision and returns how many there were. Where
// the revision is so old that its count was dropped, it returns a higher number.
func (p *proxy) countPush(number uint64) uint64 {
	if _, counted := p.pushes[number]; !counted && number <= p.dropped {
		p.pushes[number] = p.maxPushes
	}
	p.pushes[number]++
	times := p.pushes[number]
	if len(p.pushes) > maxReplies {
		oldest := slices.Min(slices.Collect(maps.Keys(p.pushes)))
		p.dropped, p.maxPushes = max(p.dropped, oldest), max(p.maxPushes, p.pushes[oldest])
		delete(p.pushes, oldest)
	}
	return times
}

// note keeps the session's reply to a revision.
func (s *session) note(number uint64, accepted bool) {
	s.replies[number] = accepted
	if len(s.replies) > maxReplies {
		delete(s.replies, slices.Min(slices.Collect(maps.Keys(s.replies))))
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
			l.era++
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
