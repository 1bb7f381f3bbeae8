package xds

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Control planes on one store tell each other of their proxies. What another one tells
// becomes sessions of the ledger, on which no stream here pushes: so status, the wait of
// apply, canaries and counters know the proxies of all.

const (
	// tellEvery is how often a control plane tells at most, and tellBytes how much a second.
	tellEvery, tellBytes = 50 * time.Millisecond, 250_000
	// tellAgain is after how long it tells what it could not.
	tellAgain = time.Second
	// maxPart is the most that is told in one piece.
	maxPart = 512 << 10
	// maxParts ends that where a single proxy takes more.
	maxParts = 1024
	// maxTold is how many replies of a session are told, the latest.
	maxTold = 4
	// ownIDs is what the ids of sessions with a stream here are above: they are younger
	// than others of their proxy.
	ownIDs = 1 << 32
)

// told is a session as another control plane tells of it.
type told struct {
	Known store.Proxy
	facts
}

// latest are the last replies, as many as are told.
func latest(replies map[uint64]bool) map[uint64]bool {
	kept := map[uint64]bool{}
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(replies))) {
		kept[n] = replies[n]
		if len(kept) == maxTold {
			break
		}
	}
	return kept
}

// tell returns the sessions with a stream here, in parts: each proxy stays in its part until
// one is larger than maxPart, and they become twice as many. Packing them takes a while, in
// which the ledger is not kept from its proxies.
func (l *Ledger) tell() (parts [][]byte) {
	isTooLarge := func(part []byte) bool { return len(part) > maxPart }
	for {
		parts = nil
		for _, list := range l.toTell() {
			parts = append(parts, pack(list))
		}
		l.parts = len(parts)
		if l.parts >= maxParts || !slices.ContainsFunc(parts, isTooLarge) {
			return parts
		}
		l.parts *= 2
	}
}

func (l *Ledger) toTell() [][]told {
	l.mu.Lock()
	defer l.mu.Unlock()
	lists := make([][]told, max(l.parts, 1))
	for _, id := range slices.SortedFunc(maps.Keys(l.proxies), store.Identity.Compare) {
		p, hash := l.proxies[id], fnv.New32a()
		_, _ = hash.Write([]byte(id.SAN + "\x00" + id.Node)) // a hash never fails
		list := &lists[hash.Sum32()%uint32(len(lists))]
		for _, s := range p.sorted() {
			if !s.elsewhere {
				t := told{p.known, s.facts}
				t.Replies = latest(s.Replies)
				*list = append(*list, t)
			}
		}
	}
	return lists
}

func pack(list []told) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_ = json.NewEncoder(w).Encode(list) // a buffer takes all
	_ = w.Close()
	return packed.Bytes()
}

// recall reads what is known of proxies without a stream here: at the start, and again
// where they may have replied elsewhere, to a control plane that has died and told nobody.
// The caller holds mu.
func (l *Ledger) recall(ctx context.Context) error {
	if _, others := l.store.Told(); others == nil && len(l.policies.tracks) > 0 {
		return nil
	}
	list, err := l.store.Proxies(ctx)
	for _, known := range list {
		if p := l.proxies[known.ID()]; p == nil {
			l.proxies[known.ID()] = &proxy{known: known, sessions: map[uint64]*session{}, gone: l.now()}
		} else if !p.isHere() {
			p.known = known
		}
	}
	return err
}

// isHere says whether the proxy has a stream here.
func (p *proxy) isHere() bool { return p.has(func(s *session) bool { return !s.elsewhere }) }

// hear replaces the sessions elsewhere by those that other control planes tell of now.
func (l *Ledger) hear(from map[string][]byte) error {
	if l.hasHeard(from) {
		return nil
	}
	list, err := unpack(from)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = from
	before := l.dropElsewhere()
	slices.SortFunc(list, func(a, b told) int { return a.Connected.Compare(b.Connected) })
	for i := range list {
		s := &session{id: uint64(i) + 1, elsewhere: true, facts: list[i].facts}
		l.hearOf(s, list[i].Known)
	}
	for _, p := range before {
		if len(p.sessions) == 0 {
			p.gone = l.now()
		}
	}
	l.broadcast()
	return nil
}

// unpack reads all that control planes tell.
func unpack(from map[string][]byte) (list []told, err error) {
	for id, packed := range from {
		var more []told
		text, err := gzip.NewReader(bytes.NewReader(packed))
		if err == nil {
			err = json.NewDecoder(text).Decode(&more)
		}
		if err != nil {
			return nil, fmt.Errorf("read what control plane %s tells of its proxies: %w", id, err)
		}
		list = append(list, more...)
	}
	return list, nil
}

// dropElsewhere drops all sessions elsewhere, and returns the proxies that had one.
func (l *Ledger) dropElsewhere() (had []*proxy) {
	for _, p := range l.proxies {
		n := len(p.sessions)
		maps.DeleteFunc(p.sessions, func(_ uint64, s *session) bool {
			if s.elsewhere {
				p.last = *s
			}
			return s.elsewhere
		})
		if len(p.sessions) < n {
			had = append(had, p)
		}
	}
	return had
}

func (l *Ledger) hasHeard(from map[string][]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.EqualFunc(from, l.heard, bytes.Equal)
}

// hearOf adds a session elsewhere, in place of an older one of the same process.
func (l *Ledger) hearOf(s *session, known store.Proxy) {
	p := l.proxies[s.who()]
	if p == nil {
		p = &proxy{sessions: map[uint64]*session{}}
		l.proxies[s.who()] = p
	}
	for id, other := range p.sessions {
		switch {
		case host(other.Peer) != host(s.Peer): // another process
		case other.elsewhere:
			delete(p.sessions, id)
		case other.Connected.After(s.Connected):
			return // it has moved here
		}
	}
	if !p.isHere() {
		p.known = known
	}
	s.track = l.policies.assign(&s.Place)
	p.sessions[s.id] = s
	p.gone = time.Time{}
}

func host(peer string) string {
	host, _, _ := net.SplitHostPort(peer)
	return host
}

// exchange tells other control planes on the store of the proxies here, and hears of
// theirs, until ctx ends.
func (s *Server) exchange(ctx context.Context) {
	teller := teller{Server: s}
	for ctx.Err() == nil {
		// Taken before telling and hearing, so that no change falls in between.
		changed := s.ledger.changes()
		from, more := s.Store.Told()
		if more == nil {
			return // there can be no other
		}
		if err := s.ledger.hear(from); err != nil {
			s.Log.Error("hear of other proxies", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-more:
		case <-teller.tell(ctx):
		}
		select {
		case <-ctx.Done():
		case <-time.After(tellEvery):
		}
	}
}

// teller tells other control planes, and not more than it may.
type teller struct {
	*Server
	next   time.Time // before which nothing is told
	failed bool      // it has, when it told last
}

// tell tells of the proxies here, unless it is too early. The channel is ready when it may
// again.
func (t *teller) tell(ctx context.Context) (again <-chan time.Time) {
	if !time.Now().Before(t.next) {
		written, err := t.Store.Tell(ctx, t.ledger.tell())
		if err != nil && !t.failed && ctx.Err() == nil {
			t.Log.Warn("tell of proxies, and again each second until it succeeds", "error", err)
		}
		t.failed = err != nil
		t.next = time.Now().Add(time.Duration(written) * time.Second / tellBytes)
		if t.failed {
			t.next = time.Now().Add(tellAgain)
		}
	}
	if wait := time.Until(t.next); wait > 0 {
		return time.After(wait)
	}
	return nil
}
