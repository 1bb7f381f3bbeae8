package testfile

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// ruleExpectation is what is expected of one rule that matches.
type ruleExpectation struct {
	name string
	e    *expectation
}

func readRules(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	r.rejectEmpty(n)
	r.members(n, shape, func(name string, f *policy.Field) {
		r.ruleNamed(f.Value, name)
		if len(f.Value.Fields) == 0 {
			e.add(doesMatch(f.Value, name))
		}
		readObject(r, f.Value, ruleObject, &ruleExpectation{name, e})
	})
}

// doesMatch is the check of a rule of which nothing is expected but that it matches.
func doesMatch(n *policy.Node, name string) check[policytest.Verdict] {
	return check[policytest.Verdict]{
		n.Line, "rules." + name, "a match of the rule", func(v *policytest.Verdict) (string, bool) {
			does := slices.ContainsFunc(v.Rules, func(rule policytest.Rule) bool { return rule.Name == name })
			return "no match of the rule", does
		},
	}
}

// add adds the check of a value of the rule.
func (o *ruleExpectation) add(n *policy.Node, field, want string, see func(*policytest.Rule) string) {
	name := o.name
	path := "rules." + name + "." + field
	o.e.add(check[policytest.Verdict]{n.Line, path, want, func(v *policytest.Verdict) (string, bool) {
		i := slices.IndexFunc(v.Rules, func(rule policytest.Rule) bool { return rule.Name == name })
		if i < 0 {
			return "no match of the rule", false
		}
		seen := see(&v.Rules[i])
		return seen, seen == want
	}})
}

// ruleUnits is the row of a field that is a number of units.
func ruleUnits(name, text string, see func(*policytest.Rule) (uint32, bool)) field[ruleExpectation] {
	read := func(r *reader, n *policy.Node, shape policy.Shape, o *ruleExpectation) {
		want := readUnits(r, n, shape)
		o.add(n, name, want, func(rule *policytest.Rule) string { return units(see(rule)) })
	}
	return field[ruleExpectation]{name, unitsShape, text, read}
}

// ruleWord is the row of a field that is one of some words.
func ruleWord(name, text string, words []string, see func(*policytest.Rule) string) field[ruleExpectation] {
	read := func(r *reader, n *policy.Node, shape policy.Shape, o *ruleExpectation) {
		o.add(n, name, r.word(n, shape), func(rule *policytest.Rule) string { return orNone(see(rule)) })
	}
	return field[ruleExpectation]{name, wordShape(words...), text, read}
}

var ruleObject = &object[ruleExpectation]{"expected_rule", []field[ruleExpectation]{
	{"allowed", boolShape, "Whether the rule allows the request. A rule in shadow may deny one that passes.",
		readRuleAllowed},
	ruleWord("mode", "Whether its denials are enforced.", []string{"enforced", "shadow"}, modeOf),
	ruleWord("reason", "Why it denies.", result.DenialReasons(),
		func(rule *policytest.Rule) string { return rule.Reason }),
	{"override", nameShape, "Name of the override that holds.", readOverride},
	ruleUnits("remaining", "What is left in its tightest window after the decision.",
		func(rule *policytest.Rule) (uint32, bool) { return rule.Remaining, !rule.Unlimited }),
	ruleUnits("held", "Units that the request held until its answer.",
		func(rule *policytest.Rule) (uint32, bool) { return rule.Held, rule.Settled }),
	ruleUnits("charged", "Units that the answer cost.",
		func(rule *policytest.Rule) (uint32, bool) { return rule.Charged, rule.Settled }),
	ruleWord("by", "What said the cost.", byShape.Words, func(rule *policytest.Rule) string { return rule.By }),
}}

func readRuleAllowed(r *reader, n *policy.Node, _ policy.Shape, o *ruleExpectation) {
	o.add(n, "allowed", fmt.Sprint(r.boolean(n)), func(rule *policytest.Rule) string { return fmt.Sprint(rule.Allowed) })
}

func readOverride(r *reader, n *policy.Node, _ policy.Shape, o *ruleExpectation) {
	want := r.name(n)
	o.add(n, "override", want, func(rule *policytest.Rule) string { return orNone(rule.Override) })
}

func modeOf(rule *policytest.Rule) string {
	if rule.Shadow {
		return "shadow"
	}
	return "enforced"
}

// windowExpectation is what is expected of one window of a counter.
type windowExpectation struct {
	name string
	e    *expectation
}

func readWindows(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	r.rejectEmpty(n)
	r.members(n, shape, func(name string, f *policy.Field) {
		r.rejectEmpty(f.Value)
		readObject(r, f.Value, windowObject, &windowExpectation{name, e})
	})
}

// windowUnits is the row of a field that is a number of units.
func windowUnits(name, text string, see func(*policytest.Window) (uint32, bool)) field[windowExpectation] {
	read := func(r *reader, n *policy.Node, shape policy.Shape, o *windowExpectation) {
		want := readUnits(r, n, shape)
		window := o.name
		o.e.count = append(o.e.count, check[policytest.Count]{
			n.Line, "windows." + window + "." + name, want, func(c *policytest.Count) (string, bool) {
				for i := range c.Windows { // as policy.Rule.LimitNamed
					if w := &c.Windows[i]; w.Name == window || strconv.Itoa(i) == window {
						seen := units(see(w))
						return seen, seen == want
					}
				}
				return "no such window", false
			},
		})
	}
	return field[windowExpectation]{name, unitsShape, text, read}
}

var windowObject = &object[windowExpectation]{"expected_window", []field[windowExpectation]{
	windowUnits("used", "What is used of it.", func(w *policytest.Window) (uint32, bool) { return w.Used, true }),
	windowUnits("remaining", "What is left of it.",
		func(w *policytest.Window) (uint32, bool) { return w.Remaining, !w.Unlimited }),
	windowUnits("limit", "What it admits.", func(w *policytest.Window) (uint32, bool) { return w.Limit, !w.Unlimited }),
}}
