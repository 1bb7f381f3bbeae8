package counters_test

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

const shop = `version: 1
domain: shop
rules:
  - name: per-user
    scope: cluster
    key: [header: x-user]
    limits: [10/minute, 100/hour]
`

// noon is a clock that stands still.
type noon struct{}

func (noon) NowNs() int64 { return 0 }

func (noon) AfterFunc(int64, func()) {}

// A user has used 9 of 10 units by the operator's word: 2 units more would be denied.
func ExamplePrepare() {
	ctx := context.Background()
	store := swapstore.NewMemory(func() int64 { return int64(12 * time.Hour) })
	service, err := quotaservice.NewService(ctx, quotaservice.Options{Store: store, Clock: noon{}})
	if err != nil {
		panic(err)
	}
	p, _, _, err := policyfile.Read("shop.yaml", []byte(shop))
	if err != nil {
		panic(err)
	}
	alice := []string{"alice"}
	for _, o := range []counters.Request{
		{Name: "set", Rule: "per-user", Key: alice, N: 9},
		{Name: "inc", Rule: "per-user", Key: alice, N: 50, Window: "1"},
		{Name: "peek", Rule: "per-user", Key: alice, N: 2},
	} {
		prepared, err := counters.Prepare(p, o)
		if err != nil {
			panic(err)
		}
		r, err := prepared.Do(ctx, service)
		if err != nil {
			panic(err)
		}
		if r.Value != nil {
			fmt.Println(o.Name, *r.Value)
			continue
		}
		fmt.Println(o.Name, "allowed:", *r.Allowed)
		for _, w := range r.Rules[0].Windows {
			fmt.Println("  used", w.Used, "left", *w.Remaining)
		}
	}
	// Output:
	// set 9
	// inc 59
	// peek allowed: false
	//   used 9 left 1
	//   used 59 left 41
}
