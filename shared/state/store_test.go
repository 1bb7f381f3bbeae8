package state

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/dchest/siphash"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
)

const (
	ms     = int64(1_000_000)
	second = 1000 * ms
)

// memory is shared data with Envoy's rules: a missing key is created whatever the
// cas, cas 0 overwrites, any other cas must match, and each write gets the next
// number.
type memory struct {
	mu          sync.Mutex
	values      map[string]*stored
	cas         uint32
	monotonicNs int64
	clock       func() int64 // nil = it stands where its callers' clocks do
}

type stored struct {
	value []byte
	cas   uint32
}

func newMemory() *memory { return &memory{values: make(map[string]*stored)} }

func (m *memory) Get(key []byte) ([]byte, uint32, Status) { return m.read(nil, key) }

// read appends the value to b.
func (m *memory) read(b, key []byte) ([]byte, uint32, Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.values[string(key)]
	if s == nil {
		return nil, 0, NotFound
	}
	return append(b, s.value...), s.cas, OK
}

func (m *memory) Set(key, value []byte, cas uint32) Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.values[string(key)]
	switch {
	case s == nil:
		s = new(stored)
		m.values[string(key)] = s
	case cas != 0 && cas != s.cas:
		return Mismatch
	}
	m.cas++
	s.value, s.cas = append(s.value[:0], value...), m.cas
	return OK
}

// Monotonic is a clock that no test steps.
func (m *memory) Monotonic() int64 { return m.monotonicNs }

// Now is the clock that is read once more.
func (m *memory) Now() int64 {
	if m.clock == nil {
		return 0
	}
	return m.clock()
}

// view is a worker's access to memory, which does not allocate: what it has read lasts for
// the next 63 reads, far longer than a request.
type view struct {
	*memory
	now, mono int64
	ring      [64][]byte
	next      int
}

func (v *view) Get(key []byte) (value []byte, cas uint32, status Status) {
	v.next = (v.next + 1) % len(v.ring)
	value, cas, status = v.read(v.ring[v.next][:0], key)
	if status == OK {
		v.ring[v.next] = value
	}
	return value, cas, status
}

func (v *view) Now() int64 { return v.now }

func (v *view) Monotonic() int64 { return v.mono }

// bytes returns the value of a key, nil if there is none.
func (m *memory) bytes(key []byte) []byte {
	value, _, _ := m.Get(key)
	return value
}

func (m *memory) directory(t testing.TB) directory.Directory {
	d, ok := directory.Read(m.bytes(directoryKey))
	require.True(t, ok)
	return d
}

// seeded fills bytes that are the same in every run.
func seeded(seed uint64) func([]byte) {
	return func(b []byte) {
		r := rand.New(rand.NewPCG(seed, 7))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	}
}

func aligned(units uint32, period, offset int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, Limit: units, PeriodNs: period, OffsetNs: offset}
}

func perKey(units uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: units, PeriodNs: period}
}

func definition(counter string, capacity uint32, windows ...limit.Window) Definition {
	return Definition{Counter: NewCounterID("test", counter, "", capacity), Windows: windows, Capacity: capacity}
}

// newTable returns the table of one counter in a store of its own.
func newTable(capacity uint32, windows ...limit.Window) *Table {
	return configured(newMemory(), "o", 1, definition("x", capacity, windows...))
}

// keyed returns a key with the limits of the table's definition, on the key's own
// grids where windows are jittered.
func keyed(table *Table, key []byte) Key {
	return Key{Bytes: key, Limits: Limits{Windows: shifted(table.def.Windows, key), OfRule: table.def.Windows}}
}

func shiftHash(key []byte) uint64 { return siphash.Hash(2, 3, key) }

func shifted(windows []limit.Window, key []byte) []limit.Window {
	for i := range windows {
		if windows[i].Jitter == 0 {
			continue
		}
		own := slices.Clone(windows)
		for j, w := range own {
			own[j] = w.Shifted(w.KeyShift(shiftHash(key)))
		}
		return own
	}
	return windows
}

func numbered(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// hit reads, checks and commits until no other worker interferes.
func hit(t testing.TB, table *Table, key []byte, now int64, cost uint32) bool {
	var e Entry
	return hitInto(t, table, &e, key, now, cost)
}

func hitInto(t testing.TB, table *Table, e *Entry, key []byte, now int64, cost uint32) bool {
	for {
		if status := table.Read(e, keyed(table, key), now); status != OK {
			t.Errorf("read: status %d", status)
			return false
		}
		if table.Check(e, cost) != e.Now {
			return false
		}
		switch status := table.Commit(e, cost, true); status {
		case OK:
			return true
		case Mismatch:
		default:
			t.Errorf("commit: status %d", status)
			return false
		}
	}
}

// used returns what a key has counted in each of the definition's windows.
func used(t testing.TB, table *Table, key []byte, now int64) []uint32 {
	var e Entry
	require.Equal(t, OK, table.Read(&e, keyed(table, key), now))
	var counts []uint32
	for i := range table.def.Windows {
		counts = append(counts, table.def.Windows[i].Count(e.Usage(i), e.Now))
	}
	return counts
}

func elastic(period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindowPerKey, PeriodNs: period, Elastic: true}
}

func jittered(period int64, percent uint8) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, PeriodNs: period, Jitter: percent}
}

func slidingLog(units uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowLog, Limit: units, PeriodNs: period, Units: uint16(units)}
}

func slidingCounter(units uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowCounter, Limit: units, PeriodNs: period}
}

func tokenBucket(burst, requests uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.TokenBucket, Limit: requests, PeriodNs: period, Burst: burst}
}

const anHour = 3600 * second

// configured returns the table of one definition in a configuration of its own.
func configured(store Store, owner string, configuredNs int64, def Definition) *Table {
	return NewTables(store, seeded(1), OwnerID(owner), configuredNs).Table(def)
}
