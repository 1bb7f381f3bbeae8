package action

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/recordbytes"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	minute = int64(60_000_000_000)
	// base is a midnight; all grids of whole seconds have a start there.
	base = int64(1_700_006_400_000_000_000)
)

var key [16]byte

func tenAMinute() *Terms {
	w := limit.Window{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: minute}
	d, err := NewTerms(&quota.Definition{ID: 1, Windows: []limit.Window{w}, Lease: quota.LeaseOff})
	if err != nil {
		panic(err)
	}
	return d
}

// decided is an operation and what came of it.
type decided struct {
	Operation
	Outcome Outcome
}

func (d *decided) undo() Action { return d.Undo(&d.Outcome) }

func (d *decided) keepDenial() Action { return d.Terms.KeepDenial(d.Action.(*Hit).Part, &d.Outcome) }

// on returns an operation of the definition that is decided on the record.
func on(r *balance.Record, d *Terms, a Action) *decided { return onStarting(r, d, a, 0) }

func onStarting(r *balance.Record, d *Terms, a Action, startingForNs int64) *decided {
	o := &decided{Operation: Operation{Terms: d, Windows: d.WindowsFor(key), Action: a}}
	o.Decide(r, base, startingForNs, &o.Outcome)
	return o
}

// A hit takes 3 of 10 units. It is undone, because another part of its ask is denied.
func Example() {
	r, d := balance.NewRecord(base), tenAMinute()
	hit := on(r, d, &Hit{Part: &quota.Part{Cost: 3}})
	fmt.Println("taken", hit.Outcome.Taken.Units, "used", hit.Outcome.Standings[0].Used)
	undo := on(r, d, hit.undo())
	fmt.Println("uncounted", undo.Outcome.Uncounted, "used", undo.Outcome.Standings[0].Used)
	// Output:
	// taken 3 used 3
	// uncounted 3 used 0
}

// TestNothingToUndo: what took nothing, or changes nothing by its denial, has no second operation.
func TestNothingToUndo(t *testing.T) {
	r, d := balance.NewRecord(base), tenAMinute()
	on(r, d, &Set{Units: 10, Window: AllWindows})
	denied := on(r, d, &Hit{Part: &quota.Part{Cost: 1, Shadow: true}})
	require.True(t, denied.Outcome.Denied)
	require.Equal(t, minute, denied.Outcome.WaitNs)
	require.Nil(t, denied.undo())
	require.Nil(t, denied.keepDenial())
	require.Nil(t, on(r, d, &Charge{Units: 1}).undo())

	d.CountDenied = true
	require.NotNil(t, denied.keepDenial())
	require.EqualValues(t, 12, on(r, d, denied.keepDenial()).Outcome.Standings[0].Used)

	windows := []limit.Window{d.Windows[0], limit.NewBlock(minute, false)}
	d, err := NewTerms(&quota.Definition{Windows: windows, Lease: quota.LeaseOff})
	require.NoError(t, err)
	on(r, d, &Hit{Part: &quota.Part{Cost: 1}})
	free := on(r, d, &Hit{Part: &quota.Part{Shadow: true}})
	require.True(t, free.Outcome.Denied && free.Outcome.Blocked)
	require.Nil(t, free.keepDenial(), "what costs nothing prolongs no block")
}

// TestAnUndoAfterASet: units that were counted before the key was set or forgotten are gone already.
func TestAnUndoAfterASet(t *testing.T) {
	for _, between := range []Action{&Set{Units: 5, Window: AllWindows}, &Reset{}} {
		r, d := balance.NewRecord(base), tenAMinute()
		hit := on(r, d, &Hit{Part: &quota.Part{Cost: 3}})
		used := on(r, d, between).Outcome.Standings[0].Used
		undo := on(r, d, hit.undo())
		require.Zero(t, undo.Outcome.Uncounted)
		require.Equal(t, used, undo.Outcome.Standings[0].Used)
		returned := on(r, d, &Return{Units: 3, Counted: hit.Outcome.Taken.Counted})
		require.Zero(t, returned.Outcome.Uncounted)
		require.Equal(t, used, returned.Outcome.Standings[0].Used)
	}
}

// FuzzDecide: any value can be decided on.
func FuzzDecide(f *testing.F) {
	r, d := balance.NewRecord(base), tenAMinute()
	on(r, d, &Hit{Part: &quota.Part{Cost: 3}})
	f.Add(recordbytes.Append(nil, r, 1))
	f.Add(recordbytes.Append(nil, balance.NewRecord(base), 2))
	r.Holders = balance.Holders{{Worker: 9, Since: 2, Number: 3, NotedNs: base, HoldNs: 80 * minute}}
	f.Add(recordbytes.Append(nil, r, 3))
	// A bucket whose end lies so long before the value's time that setting it back with the clock ends it before 1970.
	f.Add([]byte("00000000\x01000000000000000000000010\x01\x05\x9d\xc2\xfa000\x00000010"))
	f.Fuzz(func(t *testing.T, b []byte) {
		part := quota.Part{Cost: 1, Waiting: 3, Ahead: 9}
		for _, a := range []Action{&Hit{Part: &part}, &Charge{Units: 1}, &Set{Units: 1}} {
			r, err := recordbytes.Parse(b)
			if err != nil {
				return
			}
			leased := *d
			leased.Lease = quota.LeaseAuto
			on(r, &leased, a)
			_, err = recordbytes.Parse(recordbytes.Append(nil, r, 4))
			require.NoError(t, err, "what is decided can be read")
		}
	})
}
