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

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
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
	Known      store.Proxy
	Place      selector.Proxy
	Peer       string
	Connected  time.Time
	Version    string          `json:",omitzero"`
	Manage     string          `json:",omitzero"`
	Quota      string          `json:",omitzero"`
	Subscribed bool            `json:",omitzero"`
	Unserved   []string        `json:",omitzero"`
	Stranger   bool            `json:",omitzero"`
	Acked      uint64          `json:",omitzero"` // this and the next three are its stance
	Refused    []uint64        `json:",omitzero"`
	Since      uint64          `json:",omitzero"`
	Misses     int             `json:",omitzero"`
	Ahead      uint64          `json:",omitzero"`
	Runs       uint64          `json:",omitzero"`
	Holds      uint64          `json:",omitzero"`
	Pushed     uint64          `json:",omitzero"`
	InFlight   bool            `json:",omitzero"`
	Unsendable uint64          `json:",omitzero"`
	Problem    string          `json:",omitzero"`
	Replies    map[uint64]bool `json:",omitzero"`
}

func (s *session) tell(known store.Proxy) told {
	replies := map[uint64]bool{}
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(s.replies))) {
		if replies[n] = s.replies[n]; len(replies) == maxTold {
			break
		}
	}
	return told{
		known, s.place, s.peer, s.connected.UTC(), s.node.version, s.node.manage, s.node.quota, s.subscribed, s.unserved, s.stranger,
		s.stance.acked, s.stance.refused, s.stance.since, s.stance.misses, s.ahead, s.runs, s.holds, s.pushed, s.inFlight,
		s.unsendable, s.problem, replies,
	}
}

func (t *told) session(id uint64) *session {
	return &session{
		id: id, who: store.Identity{SAN: t.Place.SAN, Node: t.Place.Node}, elsewhere: true, place: t.Place, peer: t.Peer, connected: t.Connected,
		node:       node{id: t.Place.Node, version: t.Version, manage: t.Manage, quota: t.Quota, cluster: t.Place.Cluster, texts: t.Place.Metadata},
		subscribed: t.Subscribed, unserved: t.Unserved, stranger: t.Stranger,
		stance: stance{acked: t.Acked, refused: t.Refused, since: t.Since, misses: t.Misses, node: t.Place.Node},
		ahead:  t.Ahead, runs: t.Runs, holds: t.Holds, pushed: t.Pushed, inFlight: t.InFlight,
		unsendable: t.Unsendable, problem: t.Problem, replies: t.Replies,
	}
}

// tell returns the sessions with a stream here, in parts: each proxy stays in its part until
// one is larger than maxPart, and they become twice as many. Packing them takes a while, in
// which the ledger is not kept from its proxies.
func (l *Ledger) tell() (parts [][]byte) {
	for {
		parts = nil
		for _, list := range l.toTell() {
			parts = append(parts, pack(list))
		}
		if l.parts = len(parts); l.parts >= maxParts || !slices.ContainsFunc(parts, func(part []byte) bool { return len(part) > maxPart }) {
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
		for _, n := range slices.Sorted(maps.Keys(p.sessions)) {
			if s := p.sessions[n]; !s.elsewhere {
				*list = append(*list, s.tell(p.known))
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

// recall reads what proxies without a stream here have replied elsewhere: a control plane
// that has died told nobody of the latest. The caller holds mu.
func (l *Ledger) recall(ctx context.Context) error {
	if _, others := l.store.Told(); others == nil {
		return nil
	}
	list, err := l.store.Proxies(ctx)
	for _, known := range list {
		if p := l.proxies[known.ID()]; p == nil {
			l.proxies[known.ID()] = newProxy(known)
			l.proxies[known.ID()].gone = l.now()
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
	var list []told
	for id, packed := range from {
		var more []told
		text, err := gzip.NewReader(bytes.NewReader(packed))
		if err == nil {
			err = json.NewDecoder(text).Decode(&more)
		}
		if err != nil {
			return fmt.Errorf("read what control plane %s tells of its proxies: %w", id, err)
		}
		list = append(list, more...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = from
	before := map[store.Identity]bool{}
	for id, p := range l.proxies {
		maps.DeleteFunc(p.sessions, func(_ uint64, s *session) bool {
			before[id] = before[id] || s.elsewhere
			if s.elsewhere {
				p.last = *s
			}
			return s.elsewhere
		})
	}
	slices.SortFunc(list, func(a, b told) int { return a.Connected.Compare(b.Connected) })
	for i := range list {
		l.hearOf(list[i].session(uint64(i)+1), list[i].Known)
	}
	for id := range before {
		if p := l.proxies[id]; len(p.sessions) == 0 {
			p.gone = l.now()
		}
	}
	l.broadcast()
	return nil
}

func (l *Ledger) hasHeard(from map[string][]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.EqualFunc(from, l.heard, bytes.Equal)
}

// hearOf adds a session elsewhere, in place of an older one of the same process.
func (l *Ledger) hearOf(s *session, known store.Proxy) {
	p := l.proxies[s.who]
	if p == nil {
		p = newProxy(known)
		l.proxies[s.who] = p
	}
	for id, other := range p.sessions {
		if isSame := host(other.peer) == host(s.peer); isSame && !other.elsewhere && other.connected.After(s.connected) {
			return
		} else if isSame && other.elsewhere {
			delete(p.sessions, id)
		}
	}
	if !p.isHere() {
		p.known = known
	}
	s.track = l.assign(&s.place)
	p.sessions[s.id], p.gone = s, time.Time{}
}

func host(peer string) string {
	host, _, _ := net.SplitHostPort(peer)
	return host
}

// exchange tells other control planes on the store of the proxies here, and hears of
// theirs, until ctx ends.
func (s *Server) exchange(ctx context.Context) {
	var next time.Time // before which nothing is told
	failed := false
	for ctx.Err() == nil {
		// Taken before telling and hearing, so that no change falls in between.
		changed := s.ledger.changes()
		from, more := s.store.Told()
		if more == nil {
			return // there can be no other
		}
		if err := s.ledger.hear(from); err != nil {
			s.log.Error("hear of other proxies", "error", err)
		}
		if !time.Now().Before(next) {
			written, err := s.store.Tell(ctx, s.ledger.tell())
			if err != nil && !failed && ctx.Err() == nil {
				s.log.Warn("tell of proxies, and again each second until it succeeds", "error", err)
			}
			next = time.Now().Add(time.Duration(written) * time.Second / tellBytes)
			if failed = err != nil; failed {
				next = time.Now().Add(tellAgain)
			}
		}
		var again <-chan time.Time
		if wait := time.Until(next); wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-more:
		case <-again:
		}
		select {
		case <-ctx.Done():
		case <-time.After(tellEvery):
		}
	}
}
