package interleave_test

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// leased is a rule by the header x-user that leases up to eight units, whose
// hits may have a cost.
func leased(windows ...string) string {
	return fmt.Sprintf(`{"name":"user","key":[{"header":"x-user"}],"missing_key":"skip","capacity":4,"lease":8,"cost":{"header":"x-cost"},"limits":[%s]}`,
		strings.Join(windows, ","))
}

// costly is a hit of the user a that takes so many units.
func costly(at int64, units int) step {
	r := &sim.Request{Headers: [][2]string{{"x-user", "a"}, {"x-cost", strconv.Itoa(units)}}}
	return step{at, func(b *bench, worker int) string {
		res, err := b.Serve(worker, r)
		if err != nil {
			return err.Error()
		}
		return strconv.Itoa(res.Status)
	}}
}

// over is when every lease of these scenarios has ended. A hit of eight, which
// is more than a lease has beside it, then gives back what is left of one.
const over = now + 200*ms

func last() step { return costly(over, 8) }

// tickAt gives back what is left as well.
func tickAt(at int64) step {
	t := tick()
	t.at = at
	return t
}

// counted judges that what was admitted is counted, once and nothing else, and
// within the limit. costs are those of each worker's steps.
func counted(limit int, costs ...[]int) func(*outcome) error {
	return func(o *outcome) error {
		units := 0
		for worker, list := range costs {
			for i, cost := range list {
				if o.steps[worker][i] == "200" {
					units += cost
				}
			}
		}
		if units > limit {
			return fmt.Errorf("%d units are admitted, not %d", units, limit)
		}
		return expect(o.value(0) == units, "%d units admitted, %d counted", units, o.value(0))
	}
}

// leases are scenarios of workers that hold units of a key. Each execution
// begins with configurations that hold none.
func leases() (list []scenario) {
	for _, algorithm := range []string{"fixed_window", "sliding_window_counter"} {
		list = append(list, hotLease(algorithm), tickOfALease(algorithm), lastUnits(algorithm), resetOfALease(algorithm), rollOfALease(algorithm),
			takeBackOfALease(algorithm), changeOfALease(algorithm), evictedLease(algorithm))
	}
	list = append(list, sharedLease("fixed_window"))
	for i := range list {
		if list[i].next == "" {
			list[i].next = list[i].policy
		}
	}
	return list
}

// hotLease: workers take leases on one key, serve from them, and give back the
// rest.
func hotLease(algorithm string) scenario {
	return scenario{
		name: "leases on a hot key, " + algorithm, policy: leased(window(algorithm, 100)),
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", ""), hit(now+2*ms, "a", ""), hit(now+3*ms, "a", ""), last()},
			{hit(now, "a", ""), hit(now+ms, "a", ""), last()},
		},
		observed: []step{operate(over, "get", of("user", "a"))},
		judge:    counted(100, []int{1, 1, 1, 1, 8}, []int{1, 1, 8}),
	}
}

// tickOfALease: what is left goes back on a tick, beside hits and a management
// request.
func tickOfALease(algorithm string) scenario {
	return scenario{
		name: "a tick ends a lease, " + algorithm, policy: leased(window(algorithm, 100)),
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", ""), tickAt(over), tickAt(over + ms)}, {hit(now, "a", ""), operate(now, "inc", of("user", "a")+"&n=3")},
		},
		observed: []step{operate(over, "get", of("user", "a"))},
		judge:    exactly(3, 3),
	}
}

// lastUnits: what one worker holds when the others take all that is left.
func lastUnits(algorithm string) scenario {
	return scenario{
		name: "the last units beside a lease, " + algorithm, policy: leased(window(algorithm, 36)),
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", ""), hit(now+2*ms, "a", ""), costly(over, 2)}, {costly(now, 32)}, {costly(now, 2)},
		},
		observed: []step{operate(over, "get", of("user", "a"))},
		apart:    true, // what is held and given back later is denied in between
		judge:    counted(36, []int{1, 1, 1, 2}, []int{32}, []int{2}),
	}
}

// rollOfALease: a lease is held when its window ends.
func rollOfALease(algorithm string) scenario {
	const next = base + hour
	return scenario{
		name: "a window with a lease rolls, " + algorithm, policy: leased(window(algorithm, 100)),
		setUp: []step{hit(next-300*ms, "b", "")},
		scripts: [][]step{
			{hit(next-4*ms, "a", ""), hit(next-3*ms, "a", ""), hit(next, "a", ""), costly(next+200*ms, 8)}, {hit(next, "a", ""), hit(next+ms, "a", ""), costly(next+200*ms, 8)},
		},
		observed: []step{operate(next+200*ms, "get", of("user", "a"))},
		judge: func(o *outcome) error {
			late := 2 + 8 + 1 + 8
			if o.admitted() != 7 {
				return fmt.Errorf("%d are admitted, not 7", o.admitted())
			}
			if algorithm != "fixed_window" { // nothing has slid out yet, but for a part of one
				late++
			}
			return expect(o.value(0) >= late && o.value(0) <= 21, "%d admitted in the new window, %d counted", late, o.value(0))
		},
	}
}

// resetOfALease: a key is reset while a worker holds units of it. For 100 ms
// that worker may serve them; then it must count.
func resetOfALease(algorithm string) scenario {
	return scenario{
		name: "reset beside a lease, " + algorithm, policy: leased(window(algorithm, 64)),
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", ""), hit(now+2*ms, "a", ""), hit(now+3*ms, "a", ""), hit(now+150*ms, "a", "")},
			{operate(now, "reset", of("user", "a")), costly(now, 64)},
		},
		observed: []step{operate(over, "get", of("user", "a"))},
		apart:    true, // what is held may be served after a reset
		judge: func(o *outcome) error {
			full := o.steps[1][1] == "200"
			if full && o.ended[1][1] < o.began[0][4] && o.steps[0][4] == "200" {
				return fmt.Errorf("a lease is served 150 ms after it was taken")
			}
			if full && o.value(0) > 64+o.passed(0) || o.value(0) > 64 {
				return fmt.Errorf("%d counted", o.value(0))
			}
			return expect(!full || o.value(0) == 64, "64 admitted after the reset, %d counted", o.value(0))
		},
	}
}

// takeBackOfALease: a request that another rule denies late was served from a
// lease, or took one.
func takeBackOfALease(algorithm string) scenario {
	return scenario{
		name: "take-back with leases, " + algorithm, policy: leased(window(algorithm, 100)) + "," + rule("tenant", window("fixed_window", 1)),
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", "t"), hit(now+2*ms, "a", "t"), last()}, {hit(now, "a", "t")},
		},
		observed: []step{operate(over, "get", of("user", "a")), operate(over, "get", of("tenant", "t"))},
		apart:    true,
		judge: func(o *outcome) error {
			return expect(o.admitted() == 3 && o.value(0) == 1+1+8 && o.value(1) == 1, "%d are admitted, %v counted", o.admitted(), o.observed)
		},
	}
}

// sharedLease: two rules of one counter are served from one lease.
func sharedLease(algorithm string) scenario {
	second := strings.Replace(leased(window(algorithm, 50)), `"name":"user"`, `"name":"tenth","match":{"headers":{"x-tenant":"*"}},"counter":"user"`, 1)
	return scenario{
		name: "a lease of two rules, " + algorithm, policy: leased(window(algorithm, 100)) + "," + second,
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", "t"), hit(now+2*ms, "a", "t"), last()}, {hit(now, "a", "t"), last()},
		},
		observed: []step{operate(over, "get", of("user", "a"))},
		judge: func(o *outcome) error {
			return expect(o.admitted() == 6 && o.value(0) == 1+2+2+8+2+8, "%d of 6 are admitted, %d of 23 counted", o.admitted(), o.value(0))
		},
	}
}

// changeOfALease: a policy with another window reaches a worker that holds
// units.
func changeOfALease(algorithm string) scenario {
	two := `{"requests":60,"per":"2h"}`
	return scenario{
		name: "config change beside a lease, " + algorithm, policy: leased(window(algorithm, 40)), next: leased(window(algorithm, 40), two),
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", ""), change(now + 2*ms), hit(now+2*ms, "a", "")},
			{hit(now, "a", ""), hit(now+ms, "a", ""), change(now + ms)},
		},
		observed: []step{operate(over, "get", of("user", "a"))},
		judge: func(o *outcome) error { // what is held when the windows change stays counted
			return expect(o.admitted() == 5 && o.value(0) >= 5 && o.value(0) <= 6, "%d of 5 are admitted, %d counted", o.admitted(), o.value(0))
		},
	}
}

// evictedLease: a key is evicted while a worker holds units of it.
func evictedLease(algorithm string) scenario {
	policy := strings.Replace(leased(window(algorithm, 40)), `"capacity":4`, `"capacity":1`, 1)
	return scenario{
		name: "eviction beside a lease, " + algorithm, policy: policy,
		scripts: [][]step{
			{hit(now, "a", ""), hit(now+ms, "a", ""), hit(now+2*ms, "a", ""), costly(over, 8)}, {hit(now, "b", "")},
		},
		observed: []step{operate(over, "get", of("user", "a"))},
		apart:    true,
		judge: func(o *outcome) error {
			a := o.passed(0) + 7
			return expect(o.value(0) >= a, "eviction has refunded: %d are admitted, %d counted", a, o.value(0))
		},
	}
}
