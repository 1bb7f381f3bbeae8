package manage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// maxMembers is more than an object of an answer has: a rule has 14 metrics.
const maxMembers = 100

// unpack reads what a proxy answers into an answer with times in nanoseconds. It
// bounds what a few bytes can become: an empty object of three bytes is a hundred
// once it is read.
func unpack(text []byte, into any) bool {
	tokens := json.NewDecoder(bytes.NewReader(text))
	type container struct{ tokens, limit int }
	around := []container{{limit: 1}} // the innermost last
	for {
		token, err := tokens.Token()
		if errors.Is(err, io.EOF) {
			return json.Unmarshal(text, into) == nil
		}
		if err != nil {
			return false
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			around = around[:len(around)-1]
			continue
		}
		last := &around[len(around)-1]
		if last.tokens++; last.tokens > last.limit {
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

// ReadAnswer reads what the filter answers to an operation, with times in
// milliseconds. It reports whether it is such an answer.
func ReadAnswer(op Operation, text []byte) (a answer.Answer, ok bool) {
	switch op.Name {
	case "stats":
		var stats struct {
			Rules    []answer.Stats `json:"rules"`
			VMStarts uint64         `json:"vm_starts"`
		}
		ok = unpack(text, &stats)
		a.Stats, a.VMStarts = stats.Rules, stats.VMStarts
	case "top":
		var top struct {
			Rules []answer.Denials `json:"rules"`
		}
		ok = unpack(text, &top)
		a.Denials = top.Rules
		for i := range a.Denials {
			d := &a.Denials[i]
			d.SinceMs, d.SinceNs = d.SinceNs/1e6, 0
		}
	default:
		ok = unpack(text, &a)
		a.RetryMs, a.RetryNs = milliseconds(a.RetryNs), nil
		roundWindows(a.Windows)
		for i := range a.Rules {
			roundWindows(a.Rules[i].Windows)
		}
	}
	if op.Name == "expires-at" {
		a.Value = milliseconds(a.Value)
	}
	return a, ok && Answers(op, &a) && (a.Allowed == nil || a.Rules != nil)
}

// Answers reports whether an answer has all that one to the operation has.
func Answers(op Operation, a *answer.Answer) bool {
	switch op.Name {
	case "stats":
		return a.Stats != nil
	case "top":
		return a.Denials != nil
	case "hit", "peek":
		return a.Allowed != nil && (*a.Allowed || a.RetryMs != nil)
	}
	return a.Value != nil
}

// ReadExplanation reads what the filter explains, with times in milliseconds. It
// reports whether it is an explanation.
func ReadExplanation(text []byte) (answer.Explanation, bool) {
	var x answer.Explanation
	if !unpack(text, &x) || x.Rules == nil {
		return answer.Explanation{}, false
	}
	x.RetryMs, x.RetryNs = milliseconds(x.RetryNs), nil
	for i := range x.Rules {
		roundWindows(x.Rules[i].Windows)
		if l := x.Rules[i].Lease; l != nil {
			l.EndsMs, l.EndsNs = answer.Milliseconds(l.EndsNs), 0
		}
	}
	return x, Explains(&x)
}

// Explains reports whether an explanation has all that it takes to print it.
func Explains(x *answer.Explanation) bool {
	for _, r := range x.Rules {
		if r.Outcome == answer.Matches && (r.Allowed == nil && !r.Pending || r.Cost == nil && !r.Unlimited) {
			return false
		}
	}
	return x.Allowed != nil || x.Pending || len(x.DependsOn) > 0
}

func milliseconds(ns *int64) *int64 {
	if ns == nil {
		return nil
	}
	ms := answer.Milliseconds(*ns)
	return &ms
}

func roundWindows(windows []answer.Window) {
	for i := range windows {
		w := &windows[i]
		w.PerMs, w.PerNs = answer.Milliseconds(w.PerNs), 0
		w.ResetMs, w.ResetNs = answer.Milliseconds(w.ResetNs), 0
	}
}
