// Package wording makes sentences of the problems that shared/policy finds:
// what is wrong and what would be right.
//
// Its invariant: it decides nothing. It looks at the value again to say what
// its writer most likely meant, and whatever it is given, it returns a sentence.
package wording

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// plain are the sentences that need nothing but the arguments of the problem.
var plain = map[policy.Code]string{
	policy.TooLarge:         "the policy is %s bytes, the most is " + strconv.Itoa(policy.MaxBytes),
	policy.TooDeep:          "is nested more than " + strconv.Itoa(policy.MaxDepth) + " deep",
	policy.MoreProblems:     "and %s more problems",
	policy.Reserved:         "is reserved: the control plane sets it when it pushes a policy; remove it",
	policy.NotASCII:         "a header's value must be ASCII: %s",
	policy.CountDenied:      "does not go with token_bucket, where a denied request takes nothing: remove it, or use another algorithm",
	policy.ShadowPercent:    "does not go with mode shadow, which enforces nothing: remove it, or set mode to enforce",
	policy.ExemptsAll:       "would exempt every request: give it a condition, or set mode to off",
	policy.ClusterOnly:      "only a rule of scope cluster has it: remove it, or set scope to cluster",
	policy.RuleNameTwice:    "%s is the name of %s too: names of rules must differ",
	policy.CounterKey:       "shares counter %s with %s: their keys must be the same",
	policy.CounterWindows:   "shares counter %s with %s: their windows (algorithm, per, offset, jitter, elastic) must be the same",
	policy.CounterCapacity:  "shares counter %s with %s: their capacities must be the same, not %s and %s",
	policy.CostWithoutPlace: "must name where the cost is: write {header: x-cost} or {query: cost}",
	policy.CostTwoPlaces:    "has a header and a query parameter: keep one",
	policy.CostForAllEarly:  "has no match, so that no item after it is ever asked: put it last",
	policy.CostMinAboveMax:  "min is %s and max %s: min must not be above max",
	policy.CostBeyondBounds: "default is %s: it must be from min to max, %s to %s",
	policy.LeasedDenials: "needs lease: off in a rule of scope cluster: a proxy that leases denies requests without asking, " +
		"and those would not be counted",
	policy.LeasedElastic: "needs lease: off in a rule of scope cluster: a unit was counted when it was leased, " +
		"so spending it cannot move the end of its window",
	policy.CounterScope: "shares counter %s with %s: their scopes must be the same, because one would count in each proxy " +
		"and the other over all: give one of them a counter of its own",
	policy.CounterLease: "shares counter %s with %s: their lease must be the same, because a proxy spends the same units for both",
	policy.CounterLimits: "shares counter %s and leased units with %s: their limits and overrides must be the same, or units leased " +
		"under the higher limit would be spent under the lower: set lease to off in both, or give each a counter of its own",
	policy.LogsTooLong: "the logs remember %s requests a key together (overrides and rules of the same counter included), " +
		"more than a counter has room for: one log of " + strconv.Itoa(limit.MaxLog) + " fits; use sliding_window_counter for the larger",
	policy.LogTooLong: "a sliding_window_log remembers each request, at most " + strconv.Itoa(limit.MaxLog) +
		" of them, not %s: use sliding_window_counter",
	policy.EmptyBucket:      "must be at least 1, not 0: a bucket that holds nothing always denies",
	policy.BurstMisplaced:   "only token_bucket has a burst: remove it, or set algorithm to token_bucket",
	policy.ElasticMisplaced: "only fixed_window_per_key can be elastic: remove it, or set algorithm to fixed_window_per_key",
	policy.JitterMisplaced:  "only fixed_window has jitter: remove it, or set algorithm to fixed_window",
	policy.ManyInKeyPart:    "must have one field, not %s: make each part an item of its own",
	policy.FirstOfNested:    "a first_of holds no other: put its parts in the list",
	policy.FirstOfTwice:     "is never chosen: %[2]s is %[1]s too",
	policy.OverrideNoKey:    "the rule has no key whose values could differ: give it a key, or change its limits",
	policy.OverrideBoth:     "unlimited keys have no limits: keep one of the two",
	policy.OverrideNeither:  "must have limits, or unlimited: true",
	policy.OverrideRenames:  "a window has one name for all keys, the one in the rule's limits: remove it here",
	policy.GRPCStatusOK:     "a denial cannot be ok: leave it out for resource_exhausted, or write unavailable",
	policy.WindowNameNumber: "%s looks like the index of a window: use a letter",
	policy.WindowNameTwice:  "has the name of %[2]s, %[1]s: names of windows must differ",
	policy.BadCookieName:    "must be a cookie's name such as session, not %s",
	policy.BadMediaType:     "must be a media type such as application/json, not %s",
	policy.OuterSpace:       "must not start or end with a space: %s",
}

// starts say why windows of an algorithm know no offset.
var starts = map[string]string{
	"fixed_window_per_key":   "a window of fixed_window_per_key starts with its key's first hit",
	"sliding_window_log":     "a sliding_window_log looks back from each hit",
	"sliding_window_counter": "the grid of a sliding_window_counter is that of the Unix epoch",
	"token_bucket":           "a token_bucket has no window that starts",
}

// Of says what is wrong and what would be right.
func Of(p *policy.Problem) string {
	text := ""
	if p.Node != nil {
		text = p.Node.Text
	}
	if sentence, ok := plain[p.Code]; ok {
		return fill(sentence, p, text)
	}
	switch p.Code {
	case policy.WrongValue:
		return wrongValue(p)
	case policy.MissingField:
		return "is missing: it must be " + Shape(p.Want)
	case policy.UnknownField:
		return unknownField(p)
	case policy.DuplicateField:
		if len(p.Args) > 0 {
			return "appears twice, first in line " + p.Args[0] + ": keep one"
		}
		return "appears twice: keep one"
	case policy.UnknownVersion:
		return policy.Clip(text) + " is not known to this build, which reads version " + strconv.Itoa(policy.Version)
	case policy.NotUTF8:
		if p.Node == nil {
			return "field name is not UTF-8"
		}
		return "is not UTF-8: " + quote(text)
	case policy.TooLong:
		size := strconv.Itoa(len(text))
		if p.Node == nil {
			size = p.Args[1]
		}
		return "must be at most " + p.Args[0] + " bytes, not " + size
	case policy.TooMany:
		return "has " + strconv.Itoa(len(p.Node.Items)+len(p.Node.Fields)) + " " + itemsOf(p.Path) + ", the most is " + p.Args[0]
	case policy.WrongCount:
		what := "texts"
		if strings.HasSuffix(p.Path, ".first_of") {
			what = "parts to choose from"
		}
		return "must have " + p.Args[0] + " to " + p.Args[1] + " " + what + ", not " + strconv.Itoa(len(p.Node.Items))
	case policy.PatternCount:
		return "must have as many patterns as the rule's key has parts, " + p.Args[0] + ", not " + strconv.Itoa(len(p.Node.Items)) +
			`: write "*" for a part that may be anything`
	case policy.EmptyValue:
		return emptyValue(p)
	case policy.ControlChar:
		if strings.HasSuffix(p.Path, ".response.body") {
			return "must not hold control characters but tabs and ends of lines"
		}
		at := max(0, strings.IndexFunc(text, unicode.IsControl))
		return "must not hold the control character " + strconv.QuoteRuneToASCII([]rune(text[at:] + " ")[0])
	default:
		return ofContents(p, text)
	}
}

// ofContents says what is wrong inside of a text, or with a window.
//
//nolint:gocyclo // one line for each code
func ofContents(p *policy.Problem, text string) string {
	switch p.Code {
	case policy.BadManagePath:
		return managePath(text)
	case policy.BadTokenHash: // which may be the token itself: it is not repeated
		if strings.EqualFold(text, hex.EncodeToString(policy.EmptySHA256[:])) {
			return "is the SHA-256 of an empty token: set TOKEN first"
		}
		return `must be the SHA-256 of the token in quotes, 64 hexadecimal digits: printf %s "$TOKEN" | sha256sum`
	case policy.BadLimit, policy.BadLimitPeriod, policy.BadLimitRequests, policy.ManyLimits:
		return badLimit(p.Code, text)
	case policy.BadDuration:
		return badDuration(text)
	case policy.LongDuration:
		return "duration " + quote(text) + " is too long: the most is 366d"
	case policy.PeriodRange:
		return "a window must be 1ms to 366d long, not " + duration(p.Args[0])
	case policy.TimeoutRange:
		return "must be " + policy.FormatDuration(policy.MinTimeoutNs) + " to " + policy.FormatDuration(policy.MaxTimeoutNs) +
			", not " + duration(p.Args[0])
	case policy.OffsetTooLong:
		return "must be less than per, which is " + duration(p.Args[0]) + ", not " + duration(p.Args[1])
	case policy.OffsetMisplaced:
		return "only fixed_window has an offset: " + starts[p.Args[0]]
	case policy.WindowTwice:
		return "is the same window as " + p.Args[0] + " (" + Window(p.Windows[0]) + "): keep the one with the smaller limit"
	case policy.OverriddenTwice:
		return "is the same window as one before it (" + Window(p.Windows[0]) + "): keep one"
	case policy.NotARuleWindow:
		return notARuleWindow(p.Windows[0], p.Windows[1:])
	case policy.BadHost:
		return badHost(text)
	case policy.BadMethod:
		if upper := strings.ToUpper(text); slices.Contains(policy.Methods, upper) {
			return "methods are upper case: write " + quote(upper)
		}
		return "must be a method such as GET, not " + quote(text)
	case policy.BadPath:
		return badPath(text)
	case policy.BadPattern:
		return badPattern(text, strings.Contains(p.Path, ".overrides["))
	case policy.BadExpression:
		return badExpression(p.Args[0], p.Args[1])
	case policy.BadNetwork:
		return badNetwork(text)
	case policy.BadHeaderName:
		return badHeaderName(p.Args[0], strings.Contains(p.Path, ".response."))
	case policy.HeaderTaken:
		return "cannot be set: " + takenBy(p.Args[0])
	case policy.BadTemplate:
		return badTemplate(p.Args[0])
	case policy.PropertyTooEarly:
		if p.Args[0] == "route_name" {
			return `is not known before the request is decided: write route, or {property: ["xds", "route_name"]}`
		}
		return "is not known before the request is decided: " + quote(p.Args[0]) + " comes with the upstream's answer"
	case policy.PropertyNoValue:
		return "holds many values: name one of them, such as " + propertyExample(p.Args[0])
	default:
		return string(p.Code)
	}
}

// quoted are the plain sentences whose first argument stands in quotes; without
// arguments it is the value.
var quoted = map[policy.Code]bool{
	policy.NotASCII: true, policy.RuleNameTwice: true, policy.CounterKey: true, policy.CounterWindows: true, policy.CounterCapacity: true,
	policy.CounterScope: true, policy.CounterLease: true, policy.CounterLimits: true,
	policy.WindowNameNumber: true, policy.WindowNameTwice: true, policy.BadCookieName: true, policy.BadMediaType: true, policy.OuterSpace: true,
}

func fill(sentence string, p *policy.Problem, text string) string {
	var args []any
	for _, arg := range p.Args {
		args = append(args, arg)
	}
	if quoted[p.Code] {
		if len(args) == 0 {
			args = []any{text}
		}
		args[0] = quote(args[0].(string))
	}
	if len(args) == 0 {
		return sentence
	}
	return fmt.Sprintf(sentence, args...)
}

// itemsOf names the items of the list at the path.
func itemsOf(path string) string {
	field := path[strings.LastIndexByte(path, '.')+1:]
	switch field {
	case "limits":
		return "windows"
	case "exempt":
		return "exemptions"
	case "key":
		return "parts"
	}
	return field
}

func emptyValue(p *policy.Problem) string {
	switch {
	case p.Node.Kind == policy.String:
		return "must not be empty"
	case strings.HasSuffix(p.Path, ".limits"):
		return "must not be empty: write unlimited: true in place of it"
	}
	return "must not be empty: remove the field to match every request"
}

// Window is all that makes a window what it is, in words.
func Window(w limit.Window) string {
	s := policy.AlgorithmName(w.Algorithm) + " of " + policy.FormatDuration(w.PeriodNs)
	var with []string
	if w.OffsetNs > 0 {
		with = append(with, "offset "+policy.FormatDuration(w.OffsetNs))
	}
	if w.Jitter > 0 {
		with = append(with, "jitter "+strconv.Itoa(int(w.Jitter))+"%")
	}
	if w.Elastic {
		with = append(with, "elastic")
	}
	if len(with) > 0 {
		s += " with " + strings.Join(with, " and ")
	}
	return s
}

func notARuleWindow(w limit.Window, ofRule []limit.Window) string {
	s := "is " + Window(w) + ", and the rule has no "
	if len(ofRule) == 0 {
		return s + "windows: an override changes only the numbers of the rule's own"
	}
	var list []string
	for _, other := range ofRule {
		list = append(list, Window(other))
	}
	return s + "such window: an override changes only the numbers of the rule's own, " + strings.Join(list, ", ")
}

func duration(ns string) string {
	n, _ := strconv.ParseInt(ns, 10, 64)
	return policy.FormatDuration(n)
}

// quote is s in quotes, cut where it is too long for a message.
func quote(s string) string { return strconv.Quote(policy.Clip(s)) }
