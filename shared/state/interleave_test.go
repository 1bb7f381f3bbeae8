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
	type work func(d *desk, r *Receipt) (used, held int)
	hold := func(d *desk, _ *Receipt) (used, held int) {
		for {
			if d.read("k"); d.table.Check(&d.entry, 1) != d.entry.Now {
				return 0, 0
			}
			if _, status := d.table.Hold(&d.entry, 1, true); status == OK {
				return 0, 1
			}
		}
	}
	settle := func(cost uint32) work {
		return func(d *desk, r *Receipt) (used, held int) {
			require.False(t, d.settle("k", *r, cost))
			return int(cost), -1
		}
	}
	renew := func(d *desk, r *Receipt) (used, held int) {
		lapsed, status := d.table.Renew(&d.entry, keyed(d.table, []byte("k")), r, d.now)
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
			d := newDesk(t, 4, aligned(3, anHour, 0), holding())
			var receipts [2]Receipt
			for i := range receipts {
				receipts[i], _ = d.hold("k", 1)
			}
			d.store.monotonicNs += second
			used, held := 0, 2
			worker := func(i int) func(Store) {
				return func(s Store) {
					u, h := both[i](&desk{T: t, table: configured(s, "o", 1, d.table.def), now: d.now}, &receipts[i])
					used, held = used+u, held+h
				}
			}
			return d.store, [2]func(Store){worker(0), worker(1)}, func() {
				d.requireStands("k", uint32(used), uint32(held), name)
				require.True(t, used+held <= 3 || name == "a hit and a dear answer", "%s: %d, %d", name, used, held)
			}
		})
		t.Logf("%s: %d orders", name, n)
	}
}
