package balance_test

import (
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// viewOf returns the record as a definition with these windows sees it. None has jitter.
func viewOf(r *balance.Record, windows []limit.Window, hold *limit.Window) balance.View {
	v, err := r.ArrangeFor(balance.KeyWindows{Defined: windows, Shifted: windows}, hold, 0)
	if err != nil {
		panic(err)
	}
	return v
}

// A worker asks for 3 units of 1000 a minute, of which 400 are left, and expects to need 600 more. It gets 102, and
// returns the 99 that it has not spent.
func Example() {
	perMinute := limit.Window{Algorithm: limit.FixedWindow, Limit: 1000, PeriodNs: int64(time.Minute)}
	r := balance.NewRecord(int64(10 * time.Second))
	view := viewOf(r, []limit.Window{perMinute}, nil)
	view.Add(600) // what others have used before

	r.Roll(int64(20 * time.Second))
	d := view.OfferLease(quota.LeaseAuto, &quota.Part{Cost: 1, Waiting: 3, Ahead: 600})
	counted := view.Take(d.Units, d.SpendByNs)
	fmt.Println(d.Verdict == balance.Passes, d.Units, "units for", time.Duration(view.ValidNs(d.SpendByNs)))
	fmt.Println("used:", view.Standing(0).Used)

	view.Return(&counted, 99)
	fmt.Println("used:", view.Standing(0).Used)
	// Output:
	// true 102 units for 9.995s
	// used: 702
	// used: 603
}

// The store's side of the exchange of reports that sums.go of package quota draws: two reports are lost, one on
// the way and one with its answer, and the cost of 5 counts once.
func ExampleView_Note() {
	perHour := limit.Window{Algorithm: limit.FixedWindow, Limit: 100, PeriodNs: int64(time.Hour)}
	tenAtOnce := limit.Window{Algorithm: limit.Concurrency, Limit: 10, PeriodNs: int64(time.Minute)}
	r := balance.NewRecord(0)
	view := viewOf(r, []limit.Window{perHour}, &tenAtOnce)
	var worker quota.Sums
	note := func(report quota.Report, cost uint32) uint32 {
		_, offer, err := view.Note(&quota.Part{Cost: cost, Report: report})
		fmt.Printf("#%d held %d charged %d: granted %d, held %d, used %d, %v\n", report.Number, report.Held, report.Charged,
			offer.Units, r.Holders.Held(), view.Standing(0).Used, err)
		return offer.Units
	}

	granted := note(worker.NewReport(1, 7, 0), 2)
	worker.NoteGrant(7, granted)
	worker.Hold(granted)
	worker.Settle(2, 5)
	worker.NewReport(1, 8, 0) // it is lost
	report := worker.NewReport(1, 9, 0)
	note(report, 0) // the answer is lost
	note(report, 0) // it comes once more
	granted = note(worker.NewReport(1, 10, 0), 1)
	fmt.Println("a late answer to #9:", worker.NoteGrant(9, 1))
	fmt.Println("the answer to #10:", worker.NoteGrant(10, granted))
	worker.Hold(granted)
	fmt.Println("something to report:", worker.Changed())
	// Output:
	// #7 held 0 charged 0: granted 2, held 2, used 0, <nil>
	// #9 held 0 charged 5: granted 0, held 0, used 5, <nil>
	// #9 held 0 charged 5: granted 0, held 0, used 5, a newer report of the worker is noted already
	// #10 held 0 charged 5: granted 1, held 1, used 5, <nil>
	// a late answer to #9: false
	// the answer to #10: true
	// something to report: false
}

// Two definitions share a key: both count in its minute, and one also in its hour. What has ended goes once a
// definition without it asks.
func ExampleRecord_ArrangeFor() {
	const second, minute, hour = int64(1e9), int64(60e9), int64(3600e9)
	perMinute := limit.Window{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: minute}
	perHour := limit.Window{Algorithm: limit.FixedWindow, Limit: 100, PeriodNs: hour}
	strict, both := []limit.Window{perMinute}, []limit.Window{perMinute, perHour}
	r := balance.NewRecord(0)
	ask := func(storeNs int64, windows []limit.Window, units uint32) {
		r.BringTo(storeNs)
		v := viewOf(r, windows, nil)
		v.Add(units)
		fmt.Printf("%4d s: sees", storeNs/second)
		for i := range v.Windows {
			fmt.Print(" ", v.Standing(i).Used)
		}
		fmt.Println(" of the record's", len(r.Windows), "windows")
	}
	ask(10*second, both, 3)
	ask(20*second, strict, 4)
	ask(70*second, both, 1)
	ask(hour, strict, 2)
	// Output:
	//   10 s: sees 3 3 of the record's 2 windows
	//   20 s: sees 7 of the record's 2 windows
	//   70 s: sees 1 4 of the record's 2 windows
	// 3600 s: sees 2 of the record's 1 windows
}
