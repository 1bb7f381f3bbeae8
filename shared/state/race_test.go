package state

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const raceWorkers = 8

// race runs do in each of raceWorkers workers, which have their own tables over one store.
func race(store Store, do func(worker int, tables *Tables)) {
	inParallel(raceWorkers, func(n int) { do(n, NewTables(store, seeded(uint64(n)), 1, 1)) })
}

func TestAHotKeyAdmitsExactlyItsLimit(t *testing.T) {
	for _, def := range []Definition{
		definition("x", 100, aligned(1000, anHour, 0)),
		definition("x", 100, perKey(1000, anHour)),
		definition("x", 100, perKey(1000, anHour), aligned(1500, 2*anHour, 0)),
		definition("x", 100, slidingCounter(1000, anHour)),
		definition("x", 100, tokenBucket(1000, 1, anHour)),
		definition("x", 100, slidingLog(limit.MaxLog, anHour)),
		definition("x", 100, slidingLog(limit.MaxLog, anHour), slidingCounter(1000, anHour), tokenBucket(1000, 1, anHour)),
	} {
		lowest := 1000
		for _, w := range def.Windows {
			lowest = min(lowest, int(w.Max()))
		}
		var admitted atomic.Int64
		store := newMemory()
		race(store, func(worker int, tables *Tables) {
			table := tables.Table(def)
			for range 400 {
				if hit(t, table, []byte("hot"), 100*second+int64(worker), 1) {
					admitted.Add(1)
				}
			}
		})
		require.EqualValues(t, lowest, admitted.Load())
		require.EqualValues(t, lowest, used(t, configured(store, "o", 1, def), []byte("hot"), 101*second)[0])
	}
}

// request applies two rules to one request: it reads and checks both, then commits
// both in order, and refunds the first if the second denies late.
func request(t *testing.T, first, last *Table, a, b []byte, now int64) bool {
	var e, f Entry
	if first.Read(&e, keyed(first, a), now) != OK || last.Read(&f, keyed(last, b), now) != OK {
		t.Error("read")
		return false
	}
	if first.Check(&e, 1) != e.Now || last.Check(&f, 1) != f.Now {
		return false
	}
	if status := first.Commit(&e, 1, true); status != OK {
		if status != Mismatch || !hitInto(t, first, &e, a, now, 1) {
			return false
		}
	}
	status := last.Commit(&f, 1, true)
	if status == OK || (status == Mismatch && hitInto(t, last, &f, b, now, 1)) {
		return true
	}
	if !first.Refund(&e, now, 1) {
		t.Error("not refunded")
	}
	return false
}

func TestRefundRacesLeaveNoPhantomCounts(t *testing.T) {
	store := newMemory()
	const each, users = 40, 60
	perUser := definition("user", 1000, aligned(each, anHour, 0), perKey(each, 2*anHour),
		slidingLog(each, anHour), slidingCounter(each, anHour), tokenBucket(each, 1, anHour))
	total := definition("total", 4, perKey(users*each/2, anHour))
	var admitted [users]atomic.Int64
	race(store, func(worker int, tables *Tables) {
		first, last := tables.Table(perUser), tables.Table(total)
		r := rand.New(rand.NewPCG(uint64(worker), 1))
		for range 4 * each * users / raceWorkers {
			user := r.IntN(users)
			if request(t, first, last, numbered(user), nil, 100*second+r.Int64N(5)) {
				admitted[user].Add(1)
			}
		}
	})
	sum := int64(0)
	table := configured(store, "o", 1, perUser)
	for user := range admitted {
		n := admitted[user].Load()
		require.LessOrEqual(t, n, int64(each))
		left := uint32(n)
		require.Equal(t, []uint32{left, left, left, left, left}, used(t, table, numbered(user), 101*second), "user %d", user)
		sum += n
	}
	require.EqualValues(t, users*each/2, sum)
	require.Equal(t, []uint32{uint32(sum)}, used(t, configured(store, "o", 1, total), nil, 101*second))
}
