package interleave_test

import (
	"fmt"
	"slices"
	"strings"
)

var algorithms = []string{"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket"}

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

// exactly returns a judge: so many requests were admitted, and each was counted
// once, besides those counted before.
func exactly(admitted, before int) func(*outcome) error {
	return func(o *outcome) error {
		if o.admitted() != admitted {
			return fmt.Errorf("%d are admitted, not %d", o.admitted(), admitted)
		}
		return expect(o.value(0) == admitted+before, "%d admitted, %d counted", admitted+before, o.value(0))
	}
}

// scenarios returns all scenarios.
func scenarios() (list []scenario) {
	for _, algorithm := range algorithms {
		list = append(list, createPage(algorithm), hotKey(algorithm), roll(algorithm), refund(algorithm),
			refundAndReset(algorithm), fullPage(algorithm), clean(algorithm), reset(algorithm), setAndIncrement(algorithm),
			increments(algorithm))
	}
	return slices.Concat(list, changes(), special())
}

const now = base + 10*ms

// createPage: three first hits of a page that does not exist yet.
func createPage(algorithm string) scenario {
	return scenario{
		name: "create race of a page, " + algorithm, policy: rule("user", window(algorithm, 2)),
		scripts:  [][]step{{hit(now, "a", "")}, {hit(now+ms, "a", "")}, {hit(now+2*ms, "a", "")}},
		observed: []step{operate(now+5*ms, "get", of("user", "a"))},
		judge:    exactly(2, 0),
	}
}

// hotKey: three workers hit one key that has room for two more hits.
func hotKey(algorithm string) scenario {
	return scenario{
		name: "hot key, " + algorithm, policy: rule("user", window(algorithm, 3)),
		setUp:    []step{hit(base, "a", "")},
		scripts:  [][]step{{hit(now, "a", ""), hit(now+ms, "a", "")}, {hit(now+ms, "a", "")}, {hit(now-ms, "a", "")}},
		observed: []step{operate(now+5*ms, "get", of("user", "a"))},
		judge:    exactly(2, 1),
	}
}

// roll: a window ends, but not yet by the clocks of workers 0 and 2.
func roll(algorithm string) scenario {
	const next = base + hour
	return scenario{
		name: "window roll, " + algorithm, policy: rule("user", window(algorithm, 2)),
		setUp: []step{hit(base, "a", "")},
		scripts: [][]step{
			{hit(next-2*ms, "a", "")},
			{hit(next, "a", ""), hit(next+ms, "a", ""), hit(next+2*ms, "a", "")},
			{hit(next-ms, "a", "")},
		},
		observed: []step{operate(next+5*ms, "get", of("user", "a"))},
		judge: func(o *outcome) error {
			return expect(o.passed(1) <= 2, "%d are admitted in the new window", o.passed(1))
		},
	}
}

// refund: three requests with two rules, and the second rule has room for one. A
// request that is denied late refunds its hit on the first rule.
func refund(algorithm string) scenario {
	return scenario{
		name: "refund, " + algorithm, policy: rule("user", window(algorithm, 3)) + "," + rule("tenant", window("fixed_window", 1)),
		scripts:     [][]step{{hit(now, "a", "t")}, {hit(now+ms, "a", "t")}, {hit(now-ms, "a", "t")}},
		observed:    []step{operate(now+5*ms, "get", of("user", "a")), operate(now+5*ms, "get", of("tenant", "t"))},
		seesRefunds: true,
		judge: func(o *outcome) error {
			return expect(o.admitted() == 1 && o.value(0) == 1 && o.value(1) == 1,
				"%d are admitted, %d and %d counted", o.admitted(), o.value(0), o.value(1))
		},
	}
}

// refundAndReset: worker 0 may have to refund its hit while worker 2 resets the key
// and hits it.
func refundAndReset(algorithm string) scenario {
	return scenario{
		name: "refund and reset, " + algorithm, policy: rule("user", window(algorithm, 3)) + "," + rule("tenant", window("fixed_window", 1)),
		scripts:     [][]step{{hit(now, "a", "t")}, {hit(now, "b", "t")}, {operate(now, "reset", of("user", "a")), hit(now, "a", "s")}},
		observed:    []step{operate(now+5*ms, "get", of("user", "a")), operate(now+5*ms, "get", of("user", "b")), operate(now+5*ms, "get", of("tenant", "t"))},
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
	}
}

// fullPage: a new key evicts one of two keys in a full page while both are hit again.
func fullPage(algorithm string) scenario {
	return scenario{
		name: "full page, " + algorithm, policy: ruleOf("user", 2, window(algorithm, 2)),
		setUp:    []step{hit(base, "a", ""), hit(base+ms, "b", ""), hit(base+2*ms, "b", "")},
		scripts:  [][]step{{hit(now, "c", "")}, {hit(now+ms, "a", ""), hit(now+2*ms, "a", "")}, {hit(now-ms, "b", "")}},
		observed: []step{operate(now+5*ms, "stats", of("user", ""))},
		judge: func(o *outcome) error {
			return expect(o.passed(1) <= 1 && o.passed(2) == 0,
				"eviction has refunded: %d of a and %d of b are admitted after 1 of 2 and 2 of 2", o.passed(1), o.passed(2))
		},
	}
}

// clean: expired records are cleaned while hits come in the same page.
func clean(algorithm string) scenario {
	const later = base + 3*hour + 100*ms
	return scenario{
		name: "clean, " + algorithm, policy: rule("user", window(algorithm, 2)),
		setUp:    []step{hit(base, "old", ""), hit(base, "older", "")},
		scripts:  [][]step{{operate(later, "clean", "rule=user")}, {hit(later, "a", ""), hit(later+ms, "a", "")}, {hit(later-ms, "a", "")}},
		observed: []step{operate(later+5*ms, "get", of("user", "a"))},
		judge:    exactly(2, 0),
	}
}

// reset: hits around the reset of a key that has used its whole limit.
func reset(algorithm string) scenario {
	return scenario{
		name: "reset, " + algorithm, policy: rule("user", window(algorithm, 2)),
		setUp:    []step{hit(base, "a", ""), hit(base+ms, "a", "")},
		scripts:  [][]step{{operate(now, "reset", of("user", "a"))}, {hit(now, "a", ""), hit(now+ms, "a", "")}, {hit(now-ms, "a", "")}},
		observed: []step{operate(now+5*ms, "get", of("user", "a"))},
		judge: func(o *outcome) error {
			if o.admitted() > 2 {
				return fmt.Errorf("%d are admitted after one reset", o.admitted())
			}
			if o.admitted() == 0 {
				return expect(o.value(0) == 0, "%d counted after the reset", o.value(0))
			}
			return expect(o.value(0) == o.admitted(), "%d admitted after the reset, %d counted", o.admitted(), o.value(0))
		},
	}
}

// increments: two workers increment a key's usage, and one hits the key.
func increments(algorithm string) scenario {
	inc := operate(now, "inc", of("user", "a")+"&n=1")
	return scenario{
		name: "two incs and a hit, " + algorithm, policy: rule("user", window(algorithm, 4)),
		setUp:    []step{hit(base, "a", "")},
		scripts:  [][]step{{inc}, {inc}, {hit(now, "a", "")}},
		observed: []step{operate(now+5*ms, "get", of("user", "a"))}, judge: exactly(1, 3),
	}
}

// setAndIncrement: one worker sets the usage, one increments it, one hits the key.
func setAndIncrement(algorithm string) scenario {
	return scenario{
		name: "set and inc, " + algorithm, policy: rule("user", window(algorithm, 4)),
		setUp: []step{hit(base, "a", "")},
		scripts: [][]step{
			{operate(now, "set", of("user", "a")+"&n=2")}, {operate(now, "inc", of("user", "a")+"&n=1")},
			{hit(now, "a", ""), hit(now+ms, "a", "")},
		},
		observed: []step{operate(now+5*ms, "get", of("user", "a"))},
		judge: func(o *outcome) error {
			return expect(o.value(0) >= 2 && o.value(0) <= 2+1+o.admitted(), "%d counted after 2 were set", o.value(0))
		},
	}
}
