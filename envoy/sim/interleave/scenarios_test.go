package interleave_test

import (
	"fmt"
	"slices"
	"strings"
)

var algorithms = []string{
	"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket",
}

// window returns a window of an hour that admits n at once. A token bucket gains too
// little for another hit during a scenario.
func window(algorithm string, n int) string {
	if algorithm == "token_bucket" {
		return fmt.Sprintf(`{"algorithm":"token_bucket","requests":1,"per":"1h","burst":%d}`, n)
	}
	return fmt.Sprintf(`{"algorithm":%q,"requests":%d,"per":"1h"}`, algorithm, n)
}

// rule returns a rule by the header x-NAME with four slots.
func rule(name string, windows ...string) string {
	return ruleOf(name, 4, windows...)
}

func ruleOf(name string, capacity int, windows ...string) string {
	return fmt.Sprintf(`{"name":%q,"key":[{"header":"x-%s"}],"missing_key":"skip","capacity":%d,"limits":[%s]}`,
		name, name, capacity, strings.Join(windows, ","))
}

func of(rule, key string) string { return "rule=" + rule + "&key=" + key }

// expect returns an error if the condition does not hold.
func expect(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, args...)
}

const (
	now   = base + 10*ms
	roll  = base + hour // a window of an hour ends
	later = base + 3*hour + 100*ms
)

// counters are read by the observer in the end: each is a rule and a key.
func counters(at int64, list ...[2]string) (steps []step) {
	for _, c := range list {
		steps = append(steps, operate(at, "get", of(c[0], c[1])))
	}
	return steps
}

var userA = counters(now+5*ms, [2]string{"user", "a"})

// scenarios returns all scenarios.
func scenarios() (list []scenario) {
	for _, algorithm := range algorithms {
		for _, c := range ofAlgorithm(algorithm) {
			c.name += ", " + algorithm
			list = append(list, c)
		}
	}
	return slices.Concat(list, changes(), special())
}

// ofAlgorithm returns scenarios that each algorithm has to pass.
func ofAlgorithm(algorithm string) []scenario {
	return slices.Concat(hits(algorithm), twoRules(algorithm), evictions(algorithm), operations(algorithm))
}

func hits(algorithm string) []scenario {
	of2 := rule("user", window(algorithm, 2))
	return []scenario{
		{
			name: "create race of a page", policy: of2, observed: userA,
			scripts: [][]step{{hit(now, "a", "")}, {hit(now+ms, "a", "")}, {hit(now+2*ms, "a", "")}},
		},
		hotKey(rule("user", window(algorithm, 3))),
		{
			name: "window roll", policy: of2, // not yet by the clocks of workers 0 and 2
			setUp: []step{hit(base, "a", "")},
			scripts: [][]step{
				{hit(roll-2*ms, "a", "")},
				{hit(roll, "a", ""), hit(roll+ms, "a", ""), hit(roll+2*ms, "a", "")},
				{hit(roll-ms, "a", "")},
			},
			observed: counters(roll+5*ms, [2]string{"user", "a"}),
		},
	}
}

func twoRules(algorithm string) []scenario {
	of3 := rule("user", window(algorithm, 3))
	tenant := "," + rule("tenant", window("fixed_window", 1))
	return []scenario{
		{ // a request that the second rule denies refunds its hit on the first
			name: "refund", policy: of3 + tenant,
			scripts:  [][]step{{hit(now, "a", "t")}, {hit(now+ms, "a", "t")}, {hit(now-ms, "a", "t")}},
			observed: counters(now+5*ms, [2]string{"user", "a"}, [2]string{"tenant", "t"}), seesRefunds: true,
			judge: func(o *outcome) error {
				return expect(o.admitted() == 1 && o.value(0) == 1 && o.value(1) == 1,
					"%d are admitted, %d and %d counted", o.admitted(), o.value(0), o.value(1))
			},
		},
		{ // worker 0 may have to refund its hit while worker 2 resets the key and hits it
			name: "refund and reset", policy: of3 + tenant,
			scripts: [][]step{
				{hit(now, "a", "t")},
				{hit(now, "b", "t")},
				{operate(now, "reset", of("user", "a")), hit(now, "a", "s")},
			},
			observed:    counters(now+5*ms, [2]string{"user", "a"}, [2]string{"user", "b"}, [2]string{"tenant", "t"}),
			seesRefunds: true,
			judge: func(o *outcome) error {
				switch {
				case o.passed(0)+o.passed(1) != 1 || o.value(2) != 1 || o.value(1) != o.passed(1):
					return fmt.Errorf("%d and %d are admitted, %d counted", o.passed(0), o.passed(1), o.value(2))
				case o.value(0) < 1:
					return fmt.Errorf("a refund took the hit of another request, which was admitted")
				}
				return expect(o.value(0) <= 1+o.passed(0), "%d counted, at most %d admitted", o.value(0), 1+o.passed(0))
			},
		},
	}
}

func evictions(algorithm string) []scenario {
	return []scenario{
		{ // a new key evicts one of two while both are hit again
			name: "full page", policy: ruleOf("user", 2, window(algorithm, 2)),
			setUp:    []step{hit(base, "a", ""), hit(base+ms, "b", ""), hit(base+2*ms, "b", "")},
			scripts:  [][]step{{hit(now, "c", "")}, {hit(now+ms, "a", ""), hit(now+2*ms, "a", "")}, {hit(now-ms, "b", "")}},
			observed: []step{operate(now+5*ms, "stats", of("user", ""))},
			judge: func(o *outcome) error {
				return expect(o.passed(1) <= 1 && o.passed(2) == 0,
					"eviction has refunded: %d of a and %d of b are admitted after 1 of 2 and 2 of 2", o.passed(1), o.passed(2))
			},
		},
		{ // expired records are cleaned while hits come in the same page
			name: "clean", policy: rule("user", window(algorithm, 2)),
			setUp: []step{hit(base, "old", ""), hit(base, "older", "")},
			scripts: [][]step{
				{operate(later, "clean", "rule=user")},
				{hit(later, "a", ""), hit(later+ms, "a", "")},
				{hit(later-ms, "a", "")},
			},
			observed: counters(later+5*ms, [2]string{"user", "a"}),
		},
	}
}

func operations(algorithm string) []scenario {
	of2 := rule("user", window(algorithm, 2))
	of4 := rule("user", window(algorithm, 4))
	inc := operate(now, "inc", of("user", "a")+"&n=1")
	return []scenario{
		{ // of a key that has used its whole limit
			name: "reset", policy: of2, observed: userA,
			setUp: []step{hit(base, "a", ""), hit(base+ms, "a", "")},
			scripts: [][]step{
				{operate(now, "reset", of("user", "a"))},
				{hit(now, "a", ""), hit(now+ms, "a", "")},
				{hit(now-ms, "a", "")},
			},
		},
		{
			name: "set and inc", policy: of4, observed: userA,
			setUp:   []step{hit(base, "a", "")},
			scripts: [][]step{{operate(now, "set", of("user", "a")+"&n=2")}, {inc}, {hit(now, "a", ""), hit(now+ms, "a", "")}},
		},
		{
			name: "two incs and a hit", policy: of4, observed: userA,
			setUp: []step{hit(base, "a", "")}, scripts: [][]step{{inc}, {inc}, {hit(now, "a", "")}},
		},
	}
}

// hotKey: three workers hit one key that has room for two more hits.
func hotKey(policy string) scenario {
	return scenario{
		name: "hot key", policy: policy, observed: userA,
		setUp:   []step{hit(base, "a", "")},
		scripts: [][]step{{hit(now, "a", ""), hit(now+ms, "a", "")}, {hit(now+ms, "a", "")}, {hit(now-ms, "a", "")}},
	}
}
