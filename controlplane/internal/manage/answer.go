package manage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// maxMembers is more than any object of an answer has: the types of package result are far smaller.
const maxMembers = 100

// unpack reads what a proxy answers into an answer with times in nanoseconds. It bounds what a
// few bytes can become: an empty object of three bytes is a hundred once it is read.
func unpack(text []byte, into any) bool {
	return isBounded(text) && json.Unmarshal(text, into) == nil
}

// container is an object or list that is being read: its tokens so far, and how many it may
// have.
type container struct{ tokens, limit int }

// isBounded reports whether the text is JSON, and no object or list in it is too long.
func isBounded(text []byte) bool {
	tokens := json.NewDecoder(bytes.NewReader(text))
	around := []container{{limit: 1}} // the innermost last
	for {
		token, err := tokens.Token()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			around = around[:len(around)-1]
			continue
		}
		last := &around[len(around)-1]
		last.tokens++
		if last.tokens > last.limit {
			return false
		}
		switch token {
		case json.Delim('{'):
			around = append(around, container{limit: 2 * maxMembers})
		case json.Delim('['):
			around = append(around, container{limit: policy.MaxRules})
		}
	}
}

// answer is one kind of answer to an operation.
type answer struct {
	read    func(text []byte, a *result.Result) bool // with times in milliseconds
	isWhole func(a *result.Result) bool              // it has all that such an answer has
}

var (
	ofValue   = &answer{readValue, hasValue}
	ofTime    = &answer{readTime, hasValue} // the value is one
	ofVerdict = &answer{readValue, hasVerdict}
	ofStats   = &answer{readStats, func(a *result.Result) bool { return a.Stats != nil }}
	ofDenials = &answer{readDenials, func(a *result.Result) bool { return a.Denials != nil }}
)

// ReadAnswer reads what the filter answers to an operation, with times in milliseconds. It
// reports whether it is such an answer.
func ReadAnswer(op Operation, text []byte) (a result.Result, ok bool) {
	ok = op.answer.read(text, &a)
	return a, ok && op.answer.isWhole(&a) && (a.Allowed == nil || a.Rules != nil)
}

// Answers reports whether an answer has all that one to the operation has.
func Answers(op Operation, a *result.Result) bool { return op.answer.isWhole(a) }

func hasValue(a *result.Result) bool { return a.Value != nil }

func hasVerdict(a *result.Result) bool { return a.Allowed != nil && (*a.Allowed || a.RetryMs != nil) }

func readStats(text []byte, a *result.Result) bool {
	var stats struct {
		Rules    []result.Stats `json:"rules"`
		VMStarts uint64         `json:"vm_starts"`
	}
	ok := unpack(text, &stats)
	a.Stats = stats.Rules
	a.VMStarts = stats.VMStarts
	return ok
}

func readDenials(text []byte, a *result.Result) bool {
	var denials struct {
		Rules []result.Denials `json:"rules"`
	}
	ok := unpack(text, &denials)
	a.Denials = denials.Rules
	for i := range a.Denials {
		d := &a.Denials[i]
		d.SinceMs, d.SinceNs = d.SinceNs/1e6, 0
	}
	return ok
}

// readValue reads a value or a verdict.
func readValue(text []byte, a *result.Result) bool {
	ok := unpack(text, a)
	a.RetryMs, a.RetryNs = milliseconds(a.RetryNs), nil
	a.BlockedMs, a.BlockedNs = result.Milliseconds(a.BlockedNs), 0
	roundWindows(a.Windows)
	for i := range a.Rules {
		r := &a.Rules[i]
		r.BlockedMs, r.BlockedNs = result.Milliseconds(r.BlockedNs), 0
		roundWindows(r.Windows)
	}
	return ok
}

func readTime(text []byte, a *result.Result) bool {
	ok := readValue(text, a)
	a.Value = milliseconds(a.Value)
	return ok
}

// ReadExplanation reads what the filter explains, with times in milliseconds. It reports
// whether it is an explanation.
func ReadExplanation(text []byte) (result.Explanation, bool) {
	var x result.Explanation
	if !unpack(text, &x) || x.Rules == nil {
		return result.Explanation{}, false
	}
	x.RetryMs, x.RetryNs = milliseconds(x.RetryNs), nil
	for i := range x.Rules {
		r := &x.Rules[i]
		r.BlockedMs, r.BlockedNs = result.Milliseconds(r.BlockedNs), 0
		roundWindows(r.Windows)
		if l := x.Rules[i].Lease; l != nil {
			l.EndsMs, l.EndsNs = result.Milliseconds(l.EndsNs), 0
		}
	}
	return x, Explains(&x)
}

// Explains reports whether an explanation has all that it takes to print it.
func Explains(x *result.Explanation) bool {
	isComplete := x.Allowed != nil || x.Pending || len(x.DependsOn) > 0
	return isComplete && !slices.ContainsFunc(x.Rules, lacksDecision)
}

// lacksDecision reports whether a rule that matches does not say what it decides, or by which
// cost and limits.
func lacksDecision(r result.ExplainedRule) bool {
	if r.Outcome != result.Matches {
		return false
	}
	lacksVerdict := r.Allowed == nil && !r.Pending
	lacksCost := r.Cost == nil && !r.Unlimited
	return lacksVerdict || lacksCost || slices.ContainsFunc(r.Windows, func(w result.Window) bool {
		return w.LimitFrom != "" && w.Limit == nil
	})
}

func milliseconds(ns *int64) *int64 {
	if ns == nil {
		return nil
	}
	ms := result.Milliseconds(*ns)
	return &ms
}

func roundWindows(windows []result.Window) {
	for i := range windows {
		w := &windows[i]
		w.PerMs, w.PerNs = result.Milliseconds(w.PerNs), 0
		w.ResetMs, w.ResetNs = result.Milliseconds(w.ResetNs), 0
	}
}
