package record_test

import (
	"fmt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Two definitions share a key: both count in its minute, and one also in its hour. What has ended goes once a
// definition without it asks.
func Example() {
	const second, minute, hour = int64(1e9), int64(60e9), int64(3600e9)
	perMinute := limit.Window{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: minute}
	perHour := limit.Window{Algorithm: limit.FixedWindow, Limit: 100, PeriodNs: hour}
	strict, both := []limit.Window{perMinute}, []limit.Window{perMinute, perHour}
	r := record.New(0)
	ask := func(storeNs int64, windows []limit.Window, units uint32) {
		r.BringTo(storeNs)
		v, err := r.ArrangeFor(windows, windows, nil)
		if err != nil {
			panic(err)
		}
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
