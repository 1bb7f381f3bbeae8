package testfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// expectation is what a step expects: of a verdict, or of a counter.
type expectation struct {
	verdict []check[policytest.Verdict]
	count   []check[policytest.Count]
}

// check is one thing that is expected. These functions make one, and the last two also add it:
//
//	function             what the check looks at
//	expects              a value of the verdict or of the counter
//	matches              texts of the verdict, by a pattern
//	ofOnly               a value of the only rule that matched
//	doesMatch            whether a rule matched (expectrules.go)
//	ruleExpectation.add  a value of a rule by its name, in rules (expectrules.go)
//	windowUnits          a value of a counter's window by its name, in windows (expectrules.go)
type check[T any] struct {
	line     int
	field    string // its path in expect
	expected string
	see      func(*T) (seen string, ok bool)
}

// expects is the check that a value is what the file says.
func expects[T any, V comparable](n *policy.Node, field string, want V, see func(*T) V) check[T] {
	return check[T]{n.Line, field, fmt.Sprint(want), func(of *T) (string, bool) {
		seen := see(of)
		return fmt.Sprint(seen), seen == want
	}}
}

// add adds a check of the request.
func (e *expectation) add(c check[policytest.Verdict]) { e.verdict = append(e.verdict, c) }

var (
	matchedShape = listShape(policy.Shape{Form: policy.FormName, Of: "rule_name"}, 0, policy.MaxRules)
	byShape      = wordShape("answer", "estimate", "cost", "none")
)

// What a field of expect may be expected of, as the kinds of steps that expect it.
var (
	ofRequest = sendStep | answerStep
	ofCounter = countStep
)

var expectObject = objectOf("expect", expectRows)

// A reader of a row adds the checks of it. Those of a request go to verdict, those of a counter to count.
var expectRows = []kindRow[expectation]{
	{ofRequest, "allowed", boolShape, "Whether the request reaches the upstream.", readAllowed},
	{ofRequest, "status", integerShape(100, 599), "What the client gets.", readExpectedStatus},
	{ofRequest, "denied_by", nameShape, "The rule that denies.", readDeniedBy},
	{ofRequest, "reason", wordShape(result.DenialReasons()...), "Why that rule denies.", readReason},
	{ofRequest, "retry_after", choiceShape("retry_after"),
		"How long the client has to wait, in milliseconds rounded up, or never.", readRetryAfter},
	{ofRequest, "headers", policy.Shape{Form: policy.FormPatterns},
		"Fields of the response, as patterns: * is present, ! is absent.", readHeaderPatterns},
	{ofRequest, "body", textShape, "What the client gets, as a pattern.", readBodyPattern},
	{ofRequest, "matched", matchedShape, "Exactly the rules that the request matches, in any order.", readMatched},
	{ofRequest | ofCounter, "remaining", unitsShape,
		"What is left in the tightest window, as RateLimit fields say it; of the one rule that matches.", readRemaining},
	{ofRequest | ofCounter, "held", unitsShape,
		"Units that the request held until its answer, of the one rule that matches. Of a counter: what all running " +
			"requests hold.", readHeld},
	{ofRequest, "charged", unitsShape, "Units that the answer cost, of the one rule that matches.", readCharged},
	{ofRequest, "by", byShape, "What said the cost, of the one rule that matches.", readBy},
	{ofRequest, "rules", choiceShape("expected_rules"),
		"What is expected of single rules, by their names. They must match.", readRules},
	{ofCounter, "used", unitsShape, "Of a counter: what is used of its only window.", readUsed},
	{ofCounter, "leased", unitsShape, "Of a counter of scope cluster: what the proxies have leased.", readLeased},
	{ofCounter, "blocked", durationShape,
		"Of a counter whose rule has block: what is left of the key's block, in milliseconds rounded up. 0s if there is " +
			"none.", readBlocked},
	{ofCounter, "windows", choiceShape("expected_windows"),
		"Of a counter: its windows, by name or index from 0.", readWindows},
}

func readAllowed(r *reader, n *policy.Node, _ policy.Shape, e *expectation) {
	e.add(expects(n, "allowed", r.boolean(n), func(v *policytest.Verdict) bool { return v.Allowed }))
}

func readExpectedStatus(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := int(r.integer(n, shape))
	e.add(expects(n, "status", want, func(v *policytest.Verdict) int { return v.Status }))
}

func readDeniedBy(r *reader, n *policy.Node, _ policy.Shape, e *expectation) {
	want, ok := r.text(n)
	if ok {
		r.ruleNamed(n, want)
	}
	e.add(expects(n, "denied_by", want, func(v *policytest.Verdict) string { return orNone(v.DeniedBy) }))
}

func readReason(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := r.word(n, shape)
	e.add(expects(n, "reason", want, func(v *policytest.Verdict) string { return orNone(v.Reason) }))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func readRetryAfter(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := "never"
	if n.Kind != policy.String || n.Text != want {
		want = readMilliseconds(r, n, shape)
	}
	e.add(expects(n, "retry_after", want, seenRetryAfter))
}

// readMilliseconds reads a duration, as the text that milliseconds gives of what is seen.
func readMilliseconds(r *reader, n *policy.Node, shape policy.Shape) (want string) {
	ns, err := policy.ParseDuration(n.Text)
	switch {
	case n.Kind != policy.String, err != nil && shape.Form != policy.FormDuration:
		r.failAs(n, policy.WrongValue, shape)
	case err != nil:
		r.failAs(n, policy.BadDuration, shape)
	case ns%int64(time.Millisecond) != 0:
		r.fail(n, "must be whole milliseconds such as \"2ms\", not "+strconv.Quote(n.Text)+
			": what is seen is rounded up to them")
	}
	return policy.FormatDuration(ns)
}

func seenRetryAfter(v *policytest.Verdict) string {
	switch {
	case v.Allowed:
		return "none"
	case v.RetryAfter == policytest.Never:
		return "never"
	}
	return milliseconds(v.RetryAfter)
}

// milliseconds is the time as text, in whole milliseconds rounded up.
func milliseconds(d time.Duration) string {
	return policy.FormatDuration(int64((d + time.Millisecond - 1).Truncate(time.Millisecond)))
}

// pattern reads a text in the notation of match.headers.
func (r *reader) pattern(n *policy.Node) (p policy.Pattern, ok bool) {
	if n.Kind != policy.String {
		r.failAs(n, policy.WrongValue, textShape)
		return p, false
	}
	p, err := policy.ParsePattern(n.Text)
	expression, isExpression := strings.CutPrefix(n.Text, "~")
	switch {
	case err != nil && isExpression:
		r.failAs(n, policy.BadExpression, textShape, expression, err.Error())
	case err != nil:
		r.fail(n, err.Error())
	}
	return p, err == nil
}

// matches is the check that one of some values has a pattern.
func matches(
	n *policy.Node, field string, p policy.Pattern, see func(*policytest.Verdict) []string,
) check[policytest.Verdict] {
	return check[policytest.Verdict]{n.Line, field, strconv.Quote(n.Text), func(v *policytest.Verdict) (string, bool) {
		values := see(v)
		if len(values) == 0 {
			holds, _ := p.Holds("", false, false)
			return "none", holds
		}
		var texts []string
		for _, value := range values {
			if holds, _ := p.Holds(value, true, false); holds {
				return "", true
			}
			texts = append(texts, strconv.Quote(policy.Clip(value)))
		}
		return strings.Join(texts, ", "), false
	}}
}

func readHeaderPatterns(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	r.rejectEmpty(n)
	r.members(n, shape, func(name string, f *policy.Field) {
		if !policy.IsToken(name) {
			r.failField(n, f, "is not a header's name")
			return
		}
		pattern, ok := r.pattern(f.Value)
		if ok {
			values := func(v *policytest.Verdict) []string { return v.Header.Values(name) }
			e.add(matches(f.Value, "headers."+name, pattern, values))
		}
	})
}

func readBodyPattern(r *reader, n *policy.Node, _ policy.Shape, e *expectation) {
	pattern, ok := r.pattern(n)
	if ok {
		e.add(matches(n, "body", pattern, func(v *policytest.Verdict) []string { return []string{v.Body} }))
	}
}

func readMatched(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := []string{}
	r.each(n, shape, func(item *policy.Node) {
		name, ok := r.text(item)
		if ok {
			r.ruleNamed(item, name)
		}
		want = append(want, name)
	})
	slices.Sort(want)
	e.add(expects(n, "matched", list(want), func(v *policytest.Verdict) string {
		var names []string
		for i := range v.Rules {
			names = append(names, v.Rules[i].Name)
		}
		slices.Sort(names)
		return list(names)
	}))
}

func list(names []string) string { return "[" + strings.Join(names, ", ") + "]" }

// ofOnly is the check of a value of the one rule that matched.
func ofOnly[V comparable](
	n *policy.Node, field string, want V, see func(*policytest.Rule) V,
) check[policytest.Verdict] {
	return check[policytest.Verdict]{n.Line, field, fmt.Sprint(want), func(v *policytest.Verdict) (string, bool) {
		switch len(v.Rules) {
		case 0:
			return "no rule that matches", false
		case 1:
			seen := see(&v.Rules[0])
			return fmt.Sprint(seen), seen == want
		}
		var names []string
		for i := range v.Rules {
			names = append(names, v.Rules[i].Name)
		}
		return fmt.Sprintf("%d rules that match: write rules: {%s: {%s: …}} for one of %s",
			len(names), names[0], field, strings.Join(names, ", ")), false
	}}
}

// readUnits reads a number of units, as the text that units gives of what is seen.
func readUnits(r *reader, n *policy.Node, shape policy.Shape) (want string) {
	return strconv.FormatInt(r.integer(n, shape), 10)
}

// units is a number of units as text, or none if it is not known.
func units(n uint32, known bool) string {
	if !known {
		return "none"
	}
	return strconv.FormatUint(uint64(n), 10)
}

// addOfCounter adds the check of a value of the counter.
func (e *expectation) addOfCounter(n *policy.Node, field, want string, see func(*policytest.Count) string) {
	e.count = append(e.count, expects(n, field, want, see))
}

// remaining and held may be expected of a request and of a counter: the step knows of which.

func readRemaining(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := readUnits(r, n, shape)
	e.add(ofOnly(n, "remaining", want, func(rule *policytest.Rule) string {
		return units(rule.Remaining, !rule.Unlimited)
	}))
	e.addOfCounter(n, "remaining", want, func(c *policytest.Count) string { return units(c.Remaining, !c.Unlimited) })
}

func readHeld(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := readUnits(r, n, shape)
	e.add(ofOnly(n, "held", want, func(rule *policytest.Rule) string { return units(rule.Held, rule.Settled) }))
	e.addOfCounter(n, "held", want, func(c *policytest.Count) string { return units(c.Held, true) })
}

func readCharged(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := readUnits(r, n, shape)
	e.add(ofOnly(n, "charged", want, func(rule *policytest.Rule) string { return units(rule.Charged, rule.Settled) }))
}

func readBy(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := r.word(n, shape)
	e.add(ofOnly(n, "by", want, func(rule *policytest.Rule) string { return orNone(rule.By) }))
}

func readUsed(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := readUnits(r, n, shape)
	e.addOfCounter(n, "used", want, func(c *policytest.Count) string { return units(c.Used, true) })
}

func readLeased(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := readUnits(r, n, shape)
	e.addOfCounter(n, "leased", want, func(c *policytest.Count) string { return units(c.Leased, true) })
}

func readBlocked(r *reader, n *policy.Node, shape policy.Shape, e *expectation) {
	want := readMilliseconds(r, n, shape)
	e.addOfCounter(n, "blocked", want, func(c *policytest.Count) string { return milliseconds(c.Blocked) })
}
