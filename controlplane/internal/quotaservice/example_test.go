package quotaservice_test

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// noon is a clock that stands still.
type noon struct{}

func (noon) NowNs() int64 { return 0 }

func (noon) AfterFunc(int64, func()) {}

func newService(ctx context.Context) *quotaservice.Service {
	store := swapstore.NewMemory(func() int64 { return int64(12 * time.Hour) })
	s, err := quotaservice.NewService(ctx, quotaservice.Options{Store: store, Clock: noon{}})
	if err != nil {
		panic(err)
	}
	return s
}

var tenAMinute = limit.Window{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: int64(time.Minute)}

// Two asks of a worker: the first is granted what waits, the second finds too few units left.
func ExampleStream() {
	ctx := context.Background()
	stream, err := newService(ctx).Open(quotaservice.Peer{Address: "10.0.0.1"}, func() {})
	if err != nil {
		panic(err)
	}
	defer stream.Close()
	definition := quota.Definition{ID: 1, Windows: []limit.Window{tenAMinute}, Lease: quota.LeaseOff}
	user := quota.Part{Definition: 1, Key: quota.KeyOf(1, 2), Cost: 4, Waiting: 8}
	asks := quota.Asks{
		Domain: "shop", Process: 7, Definitions: []quota.Definition{definition},
		Asks: []quota.Ask{{ID: 1, Parts: []quota.Part{user}}, {ID: 2, Parts: []quota.Part{user}}},
	}
	if err := stream.Receive(asks.Append(nil)); err != nil {
		panic(err)
	}
	message, _ := stream.Next()
	stream.Sent()
	var results quota.Results
	if err := results.Decode(message); err != nil {
		panic(err)
	}
	for _, result := range results.Results {
		g := result.Grants[0]
		fmt.Printf("ask %d: granted %t, %d units, %d used\n", result.ID, result.Outcome == quota.Granted, g.Units,
			g.Windows[0].Used)
	}
	// Output:
	// ask 1: granted true, 8 units, 8 used
	// ask 2: granted false, 0 units, 8 used
}

// Three calls of one key. With keep, a call that is too much counts nowhere; without, it counts all the same. In a
// counter of two windows both see what the other counts.
func ExampleService_Count() {
	ctx := context.Background()
	service := newService(ctx)
	hundredAnHour := limit.Window{Algorithm: limit.FixedWindow, Limit: 100, PeriodNs: int64(time.Hour)}
	counter, err := quotaservice.NewCounter("shop", [16]byte{1}, []limit.Window{tenAMinute, hundredAnHour})
	if err != nil {
		panic(err)
	}
	unlessOver := func(totals []quotaservice.Total) bool { return !totals[0].Over }
	for _, keep := range []func([]quotaservice.Total) bool{unlessOver, unlessOver, nil} {
		uses := []quotaservice.Use{{Counter: counter, Key: []byte("user 1"), Units: 8}}
		totals, err := service.Count(ctx, uses, keep)
		if err != nil {
			panic(err)
		}
		fmt.Println("over:", totals[0].Over, "used:", totals[0].Windows[0].Used, totals[0].Windows[1].Used)
	}
	// Output:
	// over: false used: 8 8
	// over: true used: 8 8
	// over: true used: 16 16
}
