package quota_test

import (
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

var key = quota.KeyOf(1, 2)

// A worker asks for units, gets more than it needs, and returns what it has not spent. The service keeps the
// State of the key.
func Example() {
	perMinute := limit.Window{Algorithm: limit.FixedWindow, Limit: 1000, PeriodNs: int64(time.Minute)}
	definition := quota.Definition{ID: 1, Windows: []limit.Window{perMinute}, Lease: quota.LeaseAuto}
	asks := quota.Asks{
		Domain: "shop", Process: 7, Definitions: []quota.Definition{definition},
		Asks: []quota.Ask{{ID: 1, Parts: []quota.Part{{Definition: 1, Key: key, Cost: 1, Waiting: 3, Ahead: 600}}}},
	}
	message := asks.Append(nil)

	var got quota.Asks
	if err := got.Decode(message); err != nil {
		panic(err)
	}
	state := quota.NewState(int64(20*time.Second), got.Definitions[0].Windows)
	state.Add(600, quota.Unleased) // what others have used before
	decision, units, terms := state.Decide(got.Definitions[0].Lease, &got.Asks[0].Parts[0])
	counted := state.Add(units, terms)
	grant := quota.Grant{Number: 1, Units: units, Leased: true, ValidNs: state.ValidNs(terms)}
	fmt.Println(decision == quota.Passes, grant.Units, "units for", time.Duration(grant.ValidNs))
	fmt.Println("used:", state.StandingOf(0).Used)

	back := quota.Return{Grant: grant.Number, Units: 99} // 3 requests have spent 1 each
	state.Refund(&counted, back.Units)
	fmt.Println("used:", state.StandingOf(0).Used)
	// Output:
	// true 102 units for 9.995s
	// used: 702
	// used: 603
}

// The exchange of reports that account.go draws: two reports are lost, one on the way and one with its answer, and
// the cost of 5 counts once.
func ExampleAccount() {
	perHour := limit.Window{Algorithm: limit.FixedWindow, Limit: 100, PeriodNs: int64(time.Hour)}
	store := quota.NewState(0, []limit.Window{perHour})
	store.Holders = &quota.Holders{}
	store.HoldLimit = &limit.Window{Algorithm: limit.Concurrency, Limit: 10, PeriodNs: int64(time.Minute)}
	var worker quota.Account
	note := func(r quota.Report, cost uint32) uint32 {
		noting, err := store.Note(&quota.Part{Key: key, Cost: cost, Report: r})
		fmt.Printf("#%d held %d charged %d: granted %d, held %d, used %d, %v\n", r.Number, r.Held, r.Charged,
			noting.Units, store.Holders.Held(), store.StandingOf(0).Used, err)
		return noting.Units
	}

	granted := note(worker.NewReport(1, 7, 0), 2)
	worker.NoteGrant(7, granted)
	worker.Held += granted
	worker.Settle(2, 5)
	worker.NewReport(1, 8, 0) // it is lost
	report := worker.NewReport(1, 9, 0)
	note(report, 0) // the answer is lost
	note(report, 0) // it comes once more
	granted = note(worker.NewReport(1, 10, 0), 1)
	fmt.Println("a late answer to #9:", worker.NoteGrant(9, 1))
	fmt.Println("the answer to #10:", worker.NoteGrant(10, granted))
	worker.Held += granted
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
