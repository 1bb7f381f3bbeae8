package quota_test

import (
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// A worker asks for 3 units, gets 102, and returns what it has not spent.
func Example() {
	perMinute := limit.Window{Algorithm: limit.FixedWindow, Limit: 1000, PeriodNs: int64(time.Minute)}
	part := quota.Part{Definition: 1, Key: quota.KeyOf(1, 2), Cost: 1, Waiting: 3, Ahead: 600}
	asks := quota.Asks{
		Domain: "shop", Process: 7,
		Definitions: []quota.Definition{{ID: 1, Windows: []limit.Window{perMinute}, Lease: quota.LeaseAuto}},
		Asks:        []quota.Ask{{ID: 1, Parts: []quota.Part{part}}},
	}
	message := asks.Append(nil)

	var got quota.Asks // by the service
	if err := got.Decode(message); err != nil {
		panic(err)
	}
	fmt.Println("waiting:", got.Asks[0].Parts[0].Waiting, "of", got.Definitions[0].Windows[0].Limit)
	grant := quota.Grant{
		Number: 1, Units: 102, Leased: true, ValidNs: int64(10 * time.Second),
		Windows: []quota.Standing{{Used: 702, ResetNs: int64(40 * time.Second)}},
	}
	answer := quota.AskResult{ID: got.Asks[0].ID, Outcome: quota.Granted, Grants: []quota.Grant{grant}}
	message = (&quota.Results{Results: []quota.AskResult{answer}}).Append(message[:0])

	var results quota.Results // by the worker
	if err := results.Decode(message); err != nil {
		panic(err)
	}
	granted := results.Results[0].Grants[0]
	fmt.Println("granted:", granted.Units, "for", time.Duration(granted.ValidNs))
	back := quota.Asks{Returns: []quota.Return{{Grant: granted.Number, Units: granted.Units - 3}}}
	fmt.Println("returned:", back.Returns[0].Units, "in", len(back.Append(nil)), "bytes")
	// Output:
	// waiting: 3 of 1000
	// granted: 102 for 10s
	// returned: 99 in 6 bytes
}

// The worker's side of the exchange that sums.go draws.
func ExampleSums() {
	var sums quota.Sums
	reportBeside := func(number uint64, askedBefore uint32) {
		r := sums.NewReport(1, number, askedBefore)
		fmt.Printf("#%d since %d: held %d, charged %d, known %d\n", r.Number, r.Since, r.Held, r.Charged, r.Known)
	}
	report := func(number uint64) { reportBeside(number, 0) }
	report(7) // asks for 2
	fmt.Println(sums.NoteGrant(7, 2))
	sums.Hold(2)
	sums.Settle(2, 5)
	report(8)  // it is lost
	report(9)  // its answer is late
	report(10) // asks for 1
	fmt.Println(sums.NoteGrant(9, 0), sums.NoteGrant(10, 1))
	sums.Hold(1)
	fmt.Println("something to report:", sums.Changed())
	sums.Settle(1, 0)
	report(11)
	fmt.Println(sums.NoteGrant(11, 0), "idle:", sums.Idle())
	sums.Settle(0, 1) // of a request that held nothing
	report(12)
	report(13)          // asks for 2
	reportBeside(14, 2) // asks for 1, in the same ask
	fmt.Println(sums.NoteGrant(13, 2), sums.NoteGrant(14, 1))
	sums.AddGiven(2 + 1)
	fmt.Println("something to report:", sums.Changed())
	// Output:
	// #7 since 7: held 0, charged 0, known 0
	// true
	// #8 since 7: held 0, charged 5, known 0
	// #9 since 7: held 0, charged 5, known 0
	// #10 since 7: held 0, charged 5, known 0
	// false true
	// something to report: false
	// #11 since 7: held 0, charged 5, known 5
	// true idle: true
	// #12 since 12: held 0, charged 1, known 0
	// #13 since 12: held 0, charged 1, known 0
	// #14 since 12: held 2, charged 1, known 0
	// false true
	// something to report: false
}
