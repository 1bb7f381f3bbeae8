package interleave_test

import (
	"fmt"
	"slices"
)

// special returns scenarios that do not vary by algorithm.
func special() []scenario {
	layered := make([]string, len(algorithms))
	for i, algorithm := range algorithms {
		layered[i] = window(algorithm, 3)
	}
	all := hotKey(rule("user", layered...))
	all.name += ", five windows of one rule"
	return slices.Concat([]scenario{all, lastSlot()}, createRaces(), refunds(), blocks(), fullPages())
}

var (
	userAndTenant = counters(now+5*ms, [2]string{"user", "a"}, [2]string{"tenant", "t"})
	statsOfAll    = []step{operate(now+5*ms, "stats", "")}
)

func fixed(name string, n int) string { return rule(name, window("fixed_window", n)) }

// createRaces returns scenarios in which workers create a table, or its directory, at once.
func createRaces() []scenario {
	return []scenario{
		{
			name: "create race of the directory, 2 workers", policy: fixed("user", 1), anew: true, observed: userA,
			scripts: [][]step{{hit(now, "a", "")}, {hit(now+ms, "a", "")}},
		},
		{
			name: "create race of the directory, 3 workers", policy: fixed("user", 2), anew: true, observed: userA,
			scripts: [][]step{{hit(now, "a", "")}, {hit(now+ms, "a", "")}, {hit(now-ms, "a", "")}},
		},
		{
			name:   "create race of two tables",
			policy: fixed("user", 1) + "," + fixed("tenant", 1) + "," + fixed("zone", 1),
			anew:   true,
			setUp:  []step{operate(base, "stats", "rule=zone")}, observed: userAndTenant,
			scripts: [][]step{{hit(now, "a", ""), hit(now, "a", "")}, {hit(now, "", "t"), hit(now, "", "t")}},
		},
		{
			name:   "create race of two tables, 3 workers",
			policy: fixed("user", 2) + "," + fixed("tenant", 2) + "," + fixed("zone", 1),
			anew:   true,
			setUp:  []step{operate(base, "stats", "rule=zone")}, observed: userAndTenant,
			scripts: [][]step{{hit(now, "a", ""), tick()}, {hit(now, "", "t")}, {hit(now, "a", "")}},
		},
		{
			name: "hot key, two hits each", policy: fixed("user", 5), setUp: []step{hit(base, "a", "")}, observed: userA,
			scripts: [][]step{
				{hit(now, "a", ""), hit(now+ms, "a", "")},
				{hit(now+ms, "a", ""), hit(now, "a", "")},
				{hit(now-ms, "a", ""), hit(now, "a", "")},
			},
		},
	}
}

// refunds returns scenarios of two rules, of which one denies what the other has counted.
func refunds() []scenario {
	return []scenario{
		{
			name:     "refund of either rule",
			policy:   rule("user", window("fixed_window_per_key", 2)) + "," + rule("tenant", window("token_bucket", 2)),
			scripts:  [][]step{{hit(now, "a", "t"), hit(now, "a", "s")}, {hit(now+ms, "a", "t")}, {hit(now-ms, "b", "t")}},
			observed: append(userAndTenant, operate(now+5*ms, "get", of("tenant", "s"))), seesRefunds: true,
			judge: func(o *outcome) error {
				s := 0
				if o.steps[0][1] == "200" {
					s = 1
				}
				a, t := o.passed(0)+o.passed(1), o.admitted()-s
				return expect(a <= 2 && t <= 2 && o.value(0) == a && o.value(1) == t && o.value(2) == s,
					"%d, %d and %d are admitted, %v counted", a, t, s, o.observed)
			},
		},
		{ // the only one that no search completes
			name: "refund, two requests each", policy: fixed("user", 6) + "," + rule("tenant", window("sliding_window_log", 3)),
			scripts: [][]step{
				{hit(now, "a", "t"), hit(now, "a", "t")},
				{hit(now+ms, "a", "t"), hit(now+ms, "a", "t")},
				{hit(now-ms, "a", "t"), hit(now, "a", "t")},
			},
			observed: userAndTenant, seesRefunds: true,
			judge: func(o *outcome) error {
				return expect(o.admitted() == 3 && o.value(0) == 3 && o.value(1) == 3,
					"%d are admitted, %d and %d counted", o.admitted(), o.value(0), o.value(1))
			},
		},
	}
}

// blocks returns scenarios in which a denial blocks a user's key. All clocks are alike and stand still:
// else the time of all executions adds up in the clock of what is held.
func blocks() []scenario {
	block := func(name, settle string) string {
		return fmt.Sprintf(`{"name":%q,"key":[{"header":"x-%s"}],"missing_key":"skip","capacity":4,"block":"1h"%s,`+
			`"limits":[%s]}`, name, name, settle, window("fixed_window", 1))
	}
	const settles = `,"settle":{}`
	thenHit := append(counters(now, [2]string{"user", "a"}), hit(now, "a", ""))
	// Users and a tenant race for their last units. If the tenant's is gone, that is no denial of the user.
	race := func(name, policy string) scenario {
		return scenario{
			name: name, policy: policy, observed: thenHit, seesRefunds: true,
			scripts: [][]step{{hit(now, "a", "t")}, {hit(now, "", "t")}, {hit(now, "a", "s")}},
			judge: func(o *outcome) error {
				admitted := o.passed(0) + o.passed(2)
				passesThen := map[bool]string{false: "429", true: "200"}[admitted == 0]
				return expect(admitted <= 1 && o.value(0) == admitted && o.observed[1] == passesThen,
					"%d are admitted, %v are counted and then answered", admitted, o.observed)
			},
		}
	}
	return []scenario{
		race("a block and a refund", block("user", "")+","+rule("tenant", window("fixed_window", 1))),
		race("a block and a refund of what is held", block("user", settles)+","+rule("tenant", window("fixed_window", 1))),
		race("two blocks, of which one holds", block("user", "")+","+block("tenant", settles)),
		race("two blocks that hold", block("user", settles)+","+block("tenant", settles)),
		{
			name: "a block and a reset", policy: block("user", ""), observed: thenHit, setUp: []step{hit(base, "a", "")},
			scripts: [][]step{{hit(now, "a", "")}, {operate(now, "reset", of("user", "a"))}, {hit(now, "a", "")}},
		},
	}
}

// fullPages returns scenarios in which a page has no room for another key, or denials count.
func fullPages() []scenario {
	return []scenario{
		{
			name: "full page without eviction",
			policy: `{"name":"user","key":[{"header":"x-user"}],"capacity":1,"on_full":"deny",` +
				`"limits":[` + window("fixed_window", 2) + `]}`,
			scripts:  [][]step{{hit(now, "a", "")}, {hit(now, "b", "")}, {hit(now, "c", ""), hit(now, "c", "")}},
			observed: statsOfAll,
		},
		{
			name: "reset under a floor", policy: ruleOf("user", 1, window("fixed_window_per_key", 2)), observed: statsOfAll,
			setUp: []step{hit(base, "a", ""), hit(base, "a", ""), hit(base, "b", "")},
			scripts: [][]step{
				{operate(now, "reset", of("user", "a"))},
				{hit(now, "a", "")},
				{hit(now, "b", ""), hit(now, "b", "")},
			},
		},
		{
			name: "denials that count",
			policy: `{"name":"user","key":[{"header":"x-user"}],"capacity":4,"count_denied":true,` +
				`"limits":[` + window("fixed_window", 1) + `]}`,
			scripts: [][]step{{hit(now, "a", ""), hit(now, "a", "")}, {hit(now, "a", "")}, {hit(now, "a", "")}}, observed: userA,
		},
	}
}

// changes returns scenarios in which a new policy reaches the workers one by one.
func changes() []scenario {
	list := changed(window("fixed_window", 4))
	for i := range list {
		list[i].name = "config change, " + list[i].name
		list[i].setUp = []step{hit(base, "a", "")}
		list[i].observed = userA
		from := 0 // the first worker that hits the key
		if list[i].next == rule("tenant", window("fixed_window", 4)) {
			from = 1
		}
		list[i].judge = func(o *outcome) error {
			admitted := 0
			for worker := from; worker < maxWorkers; worker++ {
				admitted += o.passed(worker)
			}
			isRight := admitted == 3 && o.value(0) == 4
			return expect(isRight, "%d are admitted though 3 of 4 were left, and %d counted", admitted, o.value(0))
		}
	}
	return list
}

// changed returns policies with a window of four, those that follow them, and what workers do
// meanwhile.
func changed(four string) []scenario {
	return []scenario{
		{
			name: "a window more", policy: rule("user", four), next: rule("user", four, window("token_bucket", 9)),
			scripts: [][]step{
				{change(now), hit(now, "a", ""), hit(now, "a", "")},
				{hit(now, "a", ""), change(now), hit(now+ms, "a", "")},
			},
		},
		{
			name: "a window less", policy: rule("user", four, window("sliding_window_log", 9)), next: rule("user", four),
			scripts: [][]step{
				{hit(now, "a", ""), change(now), hit(now, "a", "")},
				{hit(now, "a", ""), change(now), hit(now, "a", "")},
			},
		},
		{
			name: "3 workers", policy: rule("user", four), next: rule("user", window("sliding_window_counter", 9), four),
			scripts: [][]step{
				{change(now), hit(now, "a", "")},
				{hit(now, "a", ""), change(now), hit(now, "a", "")},
				{hit(now-ms, "a", "")},
			},
		},
		{
			name:   "a tick of the old one",
			policy: rule("user", four),
			next:   rule("user", four, window("fixed_window_per_key", 9)),
			scripts: [][]step{
				{change(now), hit(now, "a", ""), hit(now, "a", "")},
				{tick(), hit(now, "a", ""), tick(), hit(now, "a", "")},
			},
		},
		{
			name: "a rule that goes", policy: rule("user", four), next: rule("tenant", four),
			scripts: [][]step{
				{change(now), hit(now, "", "t"), tick()},
				{hit(now, "a", ""), tick(), hit(now+ms, "a", "")},
				{hit(now+ms, "a", ""), hit(now, "a", "")},
			},
		},
		{
			name: "a raised limit", policy: rule("user", window("fixed_window", 2)), next: rule("user", four),
			scripts: [][]step{
				{change(now), hit(now, "a", ""), hit(now, "a", "")},
				{hit(now, "a", ""), change(now + ms), hit(now+ms, "a", ""), hit(now+ms, "a", "")},
			},
		},
	}
}
