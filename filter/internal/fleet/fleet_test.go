package fleet

import (
	"fmt"
	"testing"
)

func TestFleet(t *testing.T) {
	for _, pattern := range []struct {
		name string
		p    Pattern
	}{{"even", Even}, {"90-10", NinetyTen}, {"moving", Moving}, {"bursts", Bursts}} {
		for _, c := range []Config{
			{Limit: "10/1s", PerSecond: 20, SecondsNs: 60 * second},
			{Limit: "100/1s", PerSecond: 200, SecondsNs: 30 * second},
			{Limit: "1000/1s", PerSecond: 2000, SecondsNs: 10 * second},
			{Limit: "10000/1s", PerSecond: 20000, SecondsNs: 3 * second},
			{Limit: "100/1m", PerSecond: 3.4, SecondsNs: 600 * second},
			{Limit: "1000/1m", PerSecond: 34, Proxies: 100, SecondsNs: 300 * second},
		} {
			if c.Proxies == 0 {
				c.Proxies = 3
			}
			c.Pattern, c.TripNs, c.Seed = pattern.p, ms, 1
			r := Run(t, c)
			fmt.Printf("%-7s %-9s %3d proxies: used %.4f over %d asks/req %.3f waited %.4f p50 %.2f p99 %.2f ms alone %d (%d of %d)\n",
				pattern.name, c.Limit, c.Proxies, r.Used(), r.Over, float64(r.Asks)/float64(r.Requests), r.AskShare(),
				float64(r.WaitP50)/1e6, float64(r.WaitP99)/1e6, r.Alone, r.Admitted, r.Possible)
		}
	}
}
