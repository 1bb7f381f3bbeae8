package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// arena is a store that does not allocate for a key it has: its reads reuse
// one buffer.
type arena struct {
	values map[string]*stored
	cas    uint32
	buffer []byte
}

func (a *arena) Get(key []byte) ([]byte, uint32, Status) {
	s := a.values[string(key)]
	if s == nil {
		return nil, 0, NotFound
	}
	a.buffer = append(a.buffer[:0], s.value...)
	return a.buffer, s.cas, OK
}

func (a *arena) Set(key, value []byte, cas uint32) Status {
	s := a.values[string(key)]
	switch {
	case s == nil:
		s = new(stored)
		a.values[string(key)] = s
	case cas != 0 && cas != s.cas:
		return Mismatch
	}
	a.cas++
	s.value, s.cas = append(s.value[:0], value...), a.cas
	return OK
}

func hotPath(t testing.TB, units uint32) (table *Table, key []byte, decide func() Status) {
	store := &arena{values: make(map[string]*stored)}
	windows := definition("x", 65536, aligned(units, anHour, 0), perKey(units, 2*anHour))
	table, key = configured(store, "o", 1, windows), []byte("user-17")
	e := new(Entry)
	for n := range 20_000 {
		require.True(t, hitInto(t, table, e, numbered(n), 100*second, 1))
	}
	require.True(t, hitInto(t, table, e, key, 100*second, 1))
	return table, key, func() Status {
		if status := table.Read(e, key, 101*second); status != OK {
			return status
		}
		if table.Check(e, windows.Windows, 1) != e.Now {
			return Full
		}
		return table.Commit(e, windows.Windows, 1, true)
	}
}

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	_, _, admitted := hotPath(t, 1<<31)
	var status Status
	require.Zero(t, testing.AllocsPerRun(1000, func() { status = admitted() }))
	require.Equal(t, OK, status)
	_, _, denied := hotPath(t, 1)
	require.Zero(t, testing.AllocsPerRun(1000, func() { status = denied() }))
	require.Equal(t, Full, status)
}

func BenchmarkHit(b *testing.B) {
	_, _, decide := hotPath(b, 1<<31)
	b.ReportAllocs()
	for b.Loop() {
		decide()
	}
}

func BenchmarkDenied(b *testing.B) {
	_, _, decide := hotPath(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		decide()
	}
}
