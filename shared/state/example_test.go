package state

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A client may send 2 requests a minute and 100 an hour. It sends three.
func Example() {
	store := newMemory() // stands for Envoy's shared data
	tables := NewTables(store, seeded(1), OwnerID("the configuration's name"), 1)
	rule := []limit.Window{
		{Algorithm: limit.FixedWindow, Limit: 2, PeriodNs: 60 * second},
		{Algorithm: limit.FixedWindow, Limit: 100, PeriodNs: 3600 * second},
	}
	table := tables.Table(Definition{
		Counter: NewCounterID("domain", "requests", "client", 1000), Windows: rule, Capacity: 1000,
	})
	key := Key{Bytes: AppendPart(nil, "192.0.2.1"), Limits: Limits{Windows: rule, OfRule: rule}}

	var e Entry
	decide := func(now int64) string {
		for {
			if table.Read(&e, key, now) != OK {
				return "failed"
			}
			if at := table.Check(&e, 1); at > e.Now {
				return fmt.Sprintf("denied until second %d", at/second)
			}
			switch table.Commit(&e, 1, true) {
			case OK:
				return fmt.Sprintf("admitted, %d in this minute", e.Usage(0).Used)
			case Mismatch: // another worker wrote first: read again
			default:
				return "failed"
			}
		}
	}
	for now := 5 * second; now <= 15*second; now += 5 * second {
		fmt.Printf("second %2d: %s\n", now/second, decide(now))
	}
	fmt.Println("shared data:")
	for _, name := range slices.Sorted(maps.Keys(store.values)) {
		fmt.Println(name, len(store.values[name].value), "bytes")
	}
	// Output:
	// second  5: admitted, 1 in this minute
	// second 10: admitted, 2 in this minute
	// second 15: denied until second 60
	// shared data:
	// sl/000000000026 772 bytes
	// sluice/seed 20 bytes
	// sluice/tables 114 bytes
}
