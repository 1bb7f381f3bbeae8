package xds

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// numbers lists the revisions in the store, newest first.
func (f *fixture) numbers() (list []uint64) {
	f.t.Helper()
	history, err := f.store.History(f.t.Context(), "", 0)
	require.NoError(f.t, err)
	for _, s := range history {
		list = append(list, s.Number)
	}
	return list
}

func (f *fixture) eventuallyKept(numbers ...uint64) {
	f.t.Helper()
	f.eventually(fmt.Sprint("kept: ", numbers), func() bool { return fmt.Sprint(f.numbers()) == fmt.Sprint(numbers) })
}

func TestOldRevisionsAreDropped(t *testing.T) {
	f := newFixture(t)
	f.keep = 2
	f.restart()
	quick, stuck := f.proxy("quick"), f.proxy("stuck")
	f.apply("r1")
	quick.accept("r1")
	stuck.accept("r1")
	f.eventually("both run it", func() bool { return f.status("quick").Acked == 1 && f.status("stuck").Acked == 1 })

	f.apply("r2")
	quick.accept("r2")
	pushed := stuck.expect("r2") // and says nothing
	for i := uint64(3); i <= 6; i++ {
		name := fmt.Sprint("r", i)
		f.apply(name)
		quick.accept(name)
		f.eventually("accepted", func() bool { return f.status("quick").Acked == i })
	}
	f.eventuallyKept(6, 5, 2, 1) // what it runs, and what it was sent
	_, err := f.store.Get(t.Context(), 3)
	require.Error(t, err)

	stuck.nack(pushed)
	stuck.refuse("r6")
	again := stuck.expect("r1") // what it fell back on was there
	stuck.ack(again)
	f.apply("r7")
	quick.accept("r7")
	f.eventuallyKept(7, 6, 1)
	stuck.accept("r7")
	f.eventually("accepted", func() bool { return f.status("stuck").Acked == 7 })
	f.apply("r8")
	quick.accept("r8")
	stuck.accept("r8")
	f.eventually("both run it", func() bool { return f.status("quick").Acked == 8 && f.status("stuck").Acked == 8 })
	f.eventuallyKept(8, 7)

	t.Run("also at the start, and a proxy that held one gets the newest", func(t *testing.T) {
		stuck.hangUpAndWait()
		quick.hangUpAndWait()
		f.keep = 0
		f.restart()
		for i := 9; i <= 12; i++ {
			f.apply(fmt.Sprint("r", i))
		}
		f.eventuallyKept(12, 11, 10, 9, 8, 7)
		f.keep = 2
		f.restart()
		f.eventuallyKept(12, 11, 8) // 8 is what they ran last
		stuck.version = "7-a-b"
		stuck.connect()
		stuck.accept("r12")
	})
}

// The one that a new proxy falls back on stays, however old.
func TestLastGoodRevisionIsKept(t *testing.T) {
	f := newFixture(t)
	f.keep = 2
	f.restart()
	f.apply("good")
	e := f.proxy("e1")
	e.accept("good")
	f.eventually("accepted", func() bool { return f.status("e1").Acked == 1 })
	for i := range 5 {
		name := fmt.Sprint("bad", i)
		f.apply(name)
		e.refuse(name)
		e.accept("good")
		f.eventually("settled", func() bool { s := f.status("e1"); return s.Nacked == uint64(i+2) && !s.Waiting })
	}
	e.hangUpAndWait()
	require.NoError(t, f.store.Forget(t.Context(), store.Identity{Node: "e1"}))
	f.restart() // nobody remembers the proxy
	f.apply("worse")
	f.eventuallyKept(7, 6, 1)
	fresh := f.proxy("fresh")
	fresh.refuse("worse")
	fresh.accept("good")
}
