package state

import (
	"iter"
	"testing"

	"github.com/stretchr/testify/require"
)

// stepStore stops its worker before each read and write.
type stepStore struct {
	Store
	stop func()
}

func (s *stepStore) Get(key []byte) ([]byte, uint32, Status) {
	s.stop()
	return s.Store.Get(key)
}

func (s *stepStore) Set(key, value []byte, cas uint32) Status {
	s.stop()
	return s.Store.Set(key, value, cas)
}

// interleavings runs two workers in every possible order of their reads and
// writes, each time from a fresh start, and returns the number of orders.
func interleavings(start func() (store Store, workers [2]func(Store), judge func())) int {
	var order []int // by step: index of the next worker among those still running
	for n := 1; ; n++ {
		store, workers, judge := start()
		type running struct {
			next func() (struct{}, bool)
			stop func()
		}
		var live []running
		for _, work := range workers {
			next, stop := iter.Pull(func(yield func(struct{}) bool) {
				work(&stepStore{store, func() { yield(struct{}{}) }})
			})
			live = append(live, running{next, stop})
			next() // up to its first access
		}
		var options []int
		for at := 0; len(live) > 0; at++ {
			if at == len(order) {
				order = append(order, 0)
			}
			options = append(options, len(live))
			if _, more := live[order[at]].next(); !more {
				live = append(live[:order[at]:order[at]], live[order[at]+1:]...)
			}
		}
		judge()
		order = order[:len(options)]
		for len(order) > 0 && order[len(order)-1] == options[len(order)-1]-1 {
			order = order[:len(order)-1]
		}
		if len(order) == 0 {
			return n
		}
		order[len(order)-1]++
	}
}

// TestEveryOrderOfTwoHolds: there is room for one more unit, and two workers hold, settle or
// renew at once. Each unit is held or charged once, whoever comes first.
func TestEveryOrderOfTwoHolds(t *testing.T) {
	const now = 100 * second
	def := definition("x", 4, aligned(3, anHour, 0), holding())
	type work func(table *Table, r *Receipt) (used, held int)
	hold := func(table *Table, _ *Receipt) (used, held int) {
		for e := new(Entry); ; {
			require.Equal(t, OK, table.Read(e, keyed(table, []byte("k")), now))
			if table.Check(e, 1) != e.Now {
				return 0, 0
			}
			if _, status := table.Hold(e, 1, true); status == OK {
				return 0, 1
			}
		}
	}
	settle := func(cost int) work {
		return func(table *Table, r *Receipt) (used, held int) {
			lapsed, status := table.Settle(new(Entry), keyed(table, []byte("k")), *r, now, uint32(cost))
			require.Equal(t, OK, status)
			require.False(t, lapsed)
			return cost, -1
		}
	}
	renew := func(table *Table, r *Receipt) (used, held int) {
		lapsed, status := table.Renew(new(Entry), keyed(table, []byte("k")), r, now)
		require.Equal(t, OK, status)
		require.False(t, lapsed)
		return 0, 0
	}
	for name, both := range map[string][2]work{
		"two hits":                {hold, hold},
		"a hit and an answer":     {hold, settle(0)},
		"a hit and a dear answer": {hold, settle(2)},
		"two answers":             {settle(1), settle(0)},
		"an answer and a renewal": {settle(1), renew},
		"two renewals":            {renew, renew},
	} {
		n := interleavings(func() (Store, [2]func(Store), func()) {
			store := newMemory()
			store.monotonicNs = 77 * second
			table := configured(store, "o", 1, def)
			var e Entry
			var receipts [2]Receipt
			for i := range receipts {
				require.Equal(t, OK, table.Read(&e, keyed(table, []byte("k")), now))
				var status Status
				receipts[i], status = table.Hold(&e, 1, true)
				require.Equal(t, OK, status)
			}
			store.monotonicNs += second
			used, held := 0, 2
			worker := func(i int) func(Store) {
				return func(s Store) {
					u, h := both[i](configured(s, "o", 1, def), &receipts[i])
					used, held = used+u, held+h
				}
			}
			return store, [2]func(Store){worker(0), worker(1)}, func() {
				require.Equal(t, OK, table.Read(&e, keyed(table, []byte("k")), now), name)
				require.EqualValues(t, used, table.Usage(&e, 0).Used, name)
				require.EqualValues(t, held, table.Held(&e), name)
				require.True(t, used+held <= 3 || name == "a hit and a dear answer", "%s: %d, %d", name, used, held)
			}
		})
		t.Logf("%s: %d orders", name, n)
	}
}
