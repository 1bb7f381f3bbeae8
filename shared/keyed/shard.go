package keyed

import (
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// shard is a share of a limiter's keys, with its own lock.
type shard struct {
	mu     sync.Mutex
	table  *state.Table
	store  store
	key    state.Key // of the current call: its hash, and its windows
	entry  state.Entry
	counts counts
}

// counts are a shard's share of Stats.
type counts struct{ allowed, denied, floorDenied, evicted, full, rebased uint64 }

// open gives the shard a table for capacity keys.
func (s *shard) open(windows []limit.Window, capacity uint32, now int64) {
	s.store.few = make(map[string][]byte)
	s.key = state.Key{Bytes: make([]byte, 8), Windows: slices.Clone(windows), Rule: windows}
	random := func(b []byte) { _, _ = rand.Read(b) } // never fails
	tables := state.NewTables(&s.store, random, 0, 0)
	s.table = tables.Table(state.Definition{Windows: windows, Capacity: capacity})

	// All pages are alike before they are first written. Persist writes such a page,
	// and the store keeps it as s.store.empty, so that reading one later allocates
	// nothing.
	s.read(now)
	s.entry.Rebased = true
	s.table.Persist(&s.entry)
	s.store.prepare(s.store.empty, int(state.GeometryFor(windows, capacity).Pages))
}

// read finds the key's entry.
func (s *shard) read(now int64) {
	must("read a key", s.table.Read(&s.entry, s.key, now))
}

// look finds the key's entry and changes nothing.
func (s *shard) look(now int64) {
	s.store.readOnly = true
	s.read(now)
	s.store.readOnly = false
}

// must panics if the table fails. That happens only if its bytes have changed since
// it wrote them.
func must(act string, status state.Status) {
	if status != state.OK {
		damaged(act, status)
	}
}

func damaged(act string, status state.Status) {
	panic(fmt.Sprintf("keyed: cannot %s: status %d: the counters are damaged", act, status))
}

// hit decides and counts. It returns when the hit would pass if no other hit came.
func (s *shard) hit(l *Limiter, cost uint32, r *Result) (pass int64) {
	e := &s.entry
	if e.Rebased {
		s.counts.rebased++
	}
	pass = s.table.Check(e, cost)
	if passes(pass, e.Now) {
		if cost == 0 {
			s.counts.allowed++
			r.Allowed = true
			return 0
		}
		return s.count(l, cost, r)
	}
	s.counts.denied++
	if e.FromFloor {
		s.counts.floorDenied++
	}
	if !l.countDenied || cost == 0 {
		s.table.Persist(e)
		return pass
	}
	switch status := s.table.Commit(e, cost, l.evict); status {
	case state.OK:
		s.evicted()
		return s.table.Check(e, cost)
	case state.Full:
		s.counts.full++
		r.Full = true
	default:
		damaged("count a denied hit", status)
	}
	return pass
}

// count counts a hit that every window has room for.
func (s *shard) count(l *Limiter, cost uint32, r *Result) (pass int64) {
	e := &s.entry
	switch status := s.table.Commit(e, cost, l.evict); {
	case status == state.OK:
		s.evicted()
	case status != state.Full:
		damaged("count a hit", status)
	case l.passFull:
		s.counts.full++
		r.Full = true
	default:
		s.counts.full++
		s.counts.denied++
		r.Full = true
		return max(s.table.Earliest(e), e.Now)
	}
	s.counts.allowed++
	r.Allowed = true
	return 0
}

func (s *shard) evicted() {
	if s.entry.Evicted {
		s.counts.evicted++
	}
}

func passes(pass, now int64) bool { return pass != limit.Never && pass <= now }

// wait returns the time from now until pass.
func wait(pass, now int64) time.Duration {
	if pass == limit.Never {
		return Never
	}
	return time.Duration(max(pass-now, 0))
}
