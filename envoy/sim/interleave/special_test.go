package interleave_test

// special returns scenarios that do not vary by algorithm.
func special() []scenario {
	layered := make([]string, len(algorithms))
	for i, algorithm := range algorithms {
		layered[i] = window(algorithm, 3)
	}
	all := hotKey(algorithms[0])
	all.name, all.policy = "hot key, five windows of one rule", rule("user", layered...)
	return []scenario{
		all,
		lastSlot(),
		{
			name: "create race of the directory, 2 workers", policy: rule("user", window("fixed_window", 1)), anew: true,
			scripts:  [][]step{{hit(now, "a", "")}, {hit(now+ms, "a", "")}},
			observed: []step{operate(now+5*ms, "get", of("user", "a"))},
			judge:    exactly(1, 0),
		},
		{
			name: "create race of the directory, 3 workers", policy: rule("user", window("fixed_window", 2)), anew: true,
			scripts:  [][]step{{hit(now, "a", "")}, {hit(now+ms, "a", "")}, {hit(now-ms, "a", "")}},
			observed: []step{operate(now+5*ms, "get", of("user", "a"))},
			judge:    exactly(2, 0),
		},
		{
			name:   "create race of two tables",
			policy: rule("user", window("fixed_window", 1)) + "," + rule("tenant", window("fixed_window", 1)) + "," + rule("zone", window("fixed_window", 1)), anew: true,
			setUp:    []step{operate(base, "stats", "rule=zone")},
			scripts:  [][]step{{hit(now, "a", ""), hit(now, "a", "")}, {hit(now, "", "t"), hit(now, "", "t")}},
			observed: []step{operate(now+5*ms, "get", of("user", "a")), operate(now+5*ms, "get", of("tenant", "t"))},
			judge: func(o *outcome) error {
				return expect(o.passed(0) == 1 && o.passed(1) == 1 && o.value(0) == 1 && o.value(1) == 1,
					"%d and %d are admitted, %d and %d counted", o.passed(0), o.passed(1), o.value(0), o.value(1))
			},
		},
		{
			name:   "create race of two tables, 3 workers",
			policy: rule("user", window("fixed_window", 2)) + "," + rule("tenant", window("fixed_window", 2)) + "," + rule("zone", window("fixed_window", 1)), anew: true,
			setUp:    []step{operate(base, "stats", "rule=zone")},
			scripts:  [][]step{{hit(now, "a", ""), tick()}, {hit(now, "", "t")}, {hit(now, "a", "")}},
			observed: []step{operate(now+5*ms, "get", of("user", "a")), operate(now+5*ms, "get", of("tenant", "t"))},
			judge: func(o *outcome) error {
				return expect(o.admitted() == 3 && o.value(0) == 2 && o.value(1) == 1,
					"%d are admitted, %d and %d counted", o.admitted(), o.value(0), o.value(1))
			},
		},
		{
			name: "hot key, two hits each", policy: rule("user", window("fixed_window", 5)),
			setUp:    []step{hit(base, "a", "")},
			scripts:  [][]step{{hit(now, "a", ""), hit(now+ms, "a", "")}, {hit(now+ms, "a", ""), hit(now, "a", "")}, {hit(now-ms, "a", ""), hit(now, "a", "")}},
			observed: []step{operate(now+5*ms, "get", of("user", "a"))},
			judge:    exactly(4, 1),
		},
		{
			name: "refund of either rule", policy: rule("user", window("fixed_window_per_key", 2)) + "," + rule("tenant", window("token_bucket", 2)),
			scripts:     [][]step{{hit(now, "a", "t"), hit(now, "a", "s")}, {hit(now+ms, "a", "t")}, {hit(now-ms, "b", "t")}},
			observed:    []step{operate(now+5*ms, "get", of("user", "a")), operate(now+5*ms, "get", of("tenant", "t")), operate(now+5*ms, "get", of("tenant", "s"))},
			seesRefunds: true,
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
		{ // the only one that no search exhausts, however long
			name: "refund, two requests each", policy: rule("user", window("fixed_window", 6)) + "," + rule("tenant", window("sliding_window_log", 3)),
			scripts: [][]step{
				{hit(now, "a", "t"), hit(now, "a", "t")}, {hit(now+ms, "a", "t"), hit(now+ms, "a", "t")}, {hit(now-ms, "a", "t"), hit(now, "a", "t")},
			},
			observed:    []step{operate(now+5*ms, "get", of("user", "a")), operate(now+5*ms, "get", of("tenant", "t"))},
			seesRefunds: true,
			judge: func(o *outcome) error {
				return expect(o.admitted() == 3 && o.value(0) == 3 && o.value(1) == 3,
					"%d are admitted, %d and %d counted", o.admitted(), o.value(0), o.value(1))
			},
		},
		{
			name:     "full page without eviction",
			policy:   `{"name":"user","key":[{"header":"x-user"}],"capacity":1,"on_full":"deny","limits":[` + window("fixed_window", 2) + `]}`,
			scripts:  [][]step{{hit(now, "a", "")}, {hit(now, "b", "")}, {hit(now, "c", ""), hit(now, "c", "")}},
			observed: []step{operate(now+5*ms, "stats", "")},
			judge: func(o *outcome) error {
				have := [...]int{min(o.passed(0), 1), min(o.passed(1), 1), min(o.passed(2), 1)}
				return expect(have[0]+have[1]+have[2] == 1, "%v have the one slot", have)
			},
		},
		{
			name: "reset under a floor", policy: ruleOf("user", 1, window("fixed_window_per_key", 2)),
			setUp:    []step{hit(base, "a", ""), hit(base, "a", ""), hit(base, "b", "")},
			scripts:  [][]step{{operate(now, "reset", of("user", "a"))}, {hit(now, "a", "")}, {hit(now, "b", ""), hit(now, "b", "")}},
			observed: []step{operate(now+5*ms, "stats", "")},
			judge: func(o *outcome) error {
				return expect(o.passed(2) <= 1, "b has had 1 of 2, and %d more are admitted", o.passed(2))
			},
		},
		{
			name:     "denials that count",
			policy:   `{"name":"user","key":[{"header":"x-user"}],"capacity":4,"count_denied":true,"limits":[` + window("fixed_window", 1) + `]}`,
			scripts:  [][]step{{hit(now, "a", ""), hit(now, "a", "")}, {hit(now, "a", "")}, {hit(now, "a", "")}},
			observed: []step{operate(now+5*ms, "get", of("user", "a"))},
			judge: func(o *outcome) error {
				return expect(o.admitted() == 1 && o.value(0) == 4, "%d are admitted, %d of 4 counted", o.admitted(), o.value(0))
			},
		},
	}
}

// changes returns scenarios in which a new policy reaches the workers one by one.
func changes() []scenario {
	four := window("fixed_window", 4)
	user := []step{operate(now+5*ms, "get", of("user", "a"))}
	counted := exactly(3, 1)
	list := []scenario{
		{
			name: "config change, a window more", policy: rule("user", four), next: rule("user", four, window("token_bucket", 9)),
			scripts: [][]step{{change(now), hit(now, "a", ""), hit(now, "a", "")}, {hit(now, "a", ""), change(now), hit(now+ms, "a", "")}},
		},
		{
			name: "config change, a window less", policy: rule("user", four, window("sliding_window_log", 9)), next: rule("user", four),
			scripts: [][]step{{hit(now, "a", ""), change(now), hit(now, "a", "")}, {hit(now, "a", ""), change(now), hit(now, "a", "")}},
		},
		{
			name: "config change, 3 workers", policy: rule("user", four), next: rule("user", window("sliding_window_counter", 9), four),
			scripts: [][]step{{change(now), hit(now, "a", "")}, {hit(now, "a", ""), change(now), hit(now, "a", "")}, {hit(now-ms, "a", "")}},
		},
		{
			name: "config change, a tick of the old one", policy: rule("user", four), next: rule("user", four, window("fixed_window_per_key", 9)),
			scripts: [][]step{{change(now), hit(now, "a", ""), hit(now, "a", "")}, {tick(), hit(now, "a", ""), tick(), hit(now, "a", "")}},
		},
		{
			name: "config change, a rule that goes", policy: rule("user", four), next: rule("tenant", four),
			scripts: [][]step{{change(now), hit(now, "", "t"), tick()}, {hit(now, "a", ""), tick(), hit(now+ms, "a", "")}, {hit(now+ms, "a", ""), hit(now, "a", "")}},
		},
		{
			name: "config change, a raised limit", policy: rule("user", window("fixed_window", 2)), next: rule("user", four),
			scripts: [][]step{{change(now), hit(now, "a", ""), hit(now, "a", "")}, {hit(now, "a", ""), change(now + ms), hit(now+ms, "a", ""), hit(now+ms, "a", "")}},
		},
	}
	for i := range list {
		list[i].setUp, list[i].observed, list[i].judge = []step{hit(base, "a", "")}, user, counted
	}
	list[4].judge = func(o *outcome) error {
		old := o.passed(1) + o.passed(2)
		return expect(old == 3 && o.value(0) == 4, "the old rule admits %d though 3 of 4 were left, and counts %d", old, o.value(0))
	}
	return list
}
