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

// shard is a part of a limiter's keys behind a lock of its own.
type shard struct {
	mu     sync.Mutex
	table  *state.Table
	store  store
	key    state.Key // the one being worked on: its hash, and its own windows
	entry  state.Entry
	counts counts
}

// counts are what a shard has seen.
type counts struct{ allowed, denied, floorDenied, evicted, full, rebased uint64 }

// open gives the shard a table of that many keys.
func (s *shard) open(windows []limit.Window, capacity uint32, now int64) {
	s.store.few = make(map[string][]byte)
	s.key = state.Key{Bytes: make([]byte, 8), Windows: slices.Clone(windows), Rule: windows}
	random := func(b []byte) { _, _ = rand.Read(b) } // never fails
	tables := state.NewTables(&s.store, random, 0, 0)
	s.table = tables.Table(state.Definition{Windows: windows, Capacity: capacity})

	// All pages look alike before they are written. Persist shows what that is,
	// so that reading one needs no memory later.
	s.read(now)
	s.entry.Rebased = true
	s.table.Persist(&s.entry)
	s.store.prepare(s.store.empty, int(state.GeometryFor(windows, capacity).Pages))
}

// read finds the key's entry.
func (s *shard) read(now int64) {
	must("read a key", s.table.Read(&s.entry, s.key, now))
}

// look finds the key's entry and leaves everything as it is.
func (s *shard) look(now int64) {
	s.store.readOnly = true
	s.read(now)
	s.store.readOnly = false
}

// must panics where the table fails, which it does only when its bytes are not
// what it has written.
func must(act string, status state.Status) {
	if status != state.OK {
		damaged(act, status)
	}
}

func damaged(act string, status state.Status) {
	panic(fmt.Sprintf("keyed: cannot %s: status %d: the counters are damaged", act, status))
}

// hit decides and counts. It returns when this very hit would pass if nobody
// else came.
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

// count counts a hit that the windows have room for.
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

// wait is how long it is from now until pass.
func wait(pass, now int64) time.Duration {
	if pass == limit.Never {
		return Never
	}
	return time.Duration(max(pass-now, 0))
}
