package manage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/top"
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
func ReadAnswer(op Operation, text []byte) (a result.Result, ok bool) {
	switch op.Name {
	case "stats":
		var stats struct {
			Rules    []result.Stats `json:"rules"`
			VMStarts uint64         `json:"vm_starts"`
		}
		ok = unpack(text, &stats)
		a.Stats, a.VMStarts = stats.Rules, stats.VMStarts
	case "top":
		var top struct {
			Rules []result.Denials `json:"rules"`
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
func Answers(op Operation, a *result.Result) bool {
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
func ReadExplanation(text []byte) (result.Explanation, bool) {
	var x result.Explanation
	if !unpack(text, &x) || x.Rules == nil {
		return result.Explanation{}, false
	}
	x.RetryMs, x.RetryNs = milliseconds(x.RetryNs), nil
	for i := range x.Rules {
		roundWindows(x.Rules[i].Windows)
		if l := x.Rules[i].Lease; l != nil {
			l.EndsMs, l.EndsNs = result.Milliseconds(l.EndsNs), 0
		}
	}
	return x, Explains(&x)
}

// Explains reports whether an explanation has all that it takes to print it.
func Explains(x *result.Explanation) bool {
	lacks := func(w result.Window) bool { return w.LimitFrom != "" && w.Limit == nil }
	for _, r := range x.Rules {
		if r.Outcome == result.Matches && (r.Allowed == nil && !r.Pending || r.Cost == nil && !r.Unlimited || slices.ContainsFunc(r.Windows, lacks)) {
			return false
		}
	}
	return x.Allowed != nil || x.Pending || len(x.DependsOn) > 0
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

// Denials adds up what the proxies know of the keys that are denied most: the rules in
// the order in which a proxy first names them.
func Denials(rows []Row) (sum []result.Denials) {
	places := map[string]int{}     // of rules in sum
	numbers := map[string]uint64{} // of keys, by what tells them apart
	var keys []result.DeniedKey
	lists := map[string][]top.List{}
	for i := range rows {
		for _, d := range rows[i].Denials {
			at, have := places[d.Rule]
			if !have {
				at, sum = len(sum), append(sum, result.Denials{Rule: d.Rule, Mode: d.Mode, SinceMs: d.SinceMs})
				places[d.Rule] = at
			}
			if sum[at].Mode != d.Mode {
				sum[at].Mode = result.PartlyEnforced
			}
			if s := &sum[at]; d.SinceMs != 0 && (s.SinceMs == 0 || d.SinceMs < s.SinceMs) {
				s.SinceMs = d.SinceMs
			}
			list := top.List{Rest: d.Rest}
			for _, k := range d.Keys {
				name := identity(&k)
				number, have := numbers[name]
				if !have {
					number = uint64(len(keys))
					numbers[name] = number
					keys = append(keys, k)
				}
				list.Keys = append(list.Keys, top.Key{ID: number, Denied: k.Denied, Error: k.Error})
			}
			lists[d.Rule] = append(lists[d.Rule], list)
		}
	}
	for i := range sum {
		merged := top.Merge(lists[sum[i].Rule]...)
		sum[i].Rest, sum[i].Keys = merged.Rest, make([]result.DeniedKey, len(merged.Keys))
		for j := range merged.Keys {
			k := keys[merged.Keys[j].ID]
			k.Denied, k.Error = merged.Keys[j].Denied, merged.Keys[j].Error
			sum[i].Keys[j] = k
		}
	}
	return sum
}

// identity tells keys apart. Of two that are cut alike nobody can say whether they are
// the same.
func identity(k *result.DeniedKey) string {
	text := k.Hash
	for _, part := range k.Key {
		if text += "\x00"; part != nil {
			text += "\x01" + *part
		}
	}
	if k.Cut {
		text += "\x00cut"
	}
	return text
}

// KeyParts are the parts of a key as operations take them.
func KeyParts(k *result.DeniedKey) []string {
	parts := make([]string, len(k.Key))
	for i, part := range k.Key {
		parts[i] = policy.PartText(part)
	}
	return parts
}

// KeyText is a key as people read it.
func KeyText(k *result.DeniedKey) string {
	if k.Hash != "" {
		return "hash " + k.Hash
	}
	text := strings.Join(KeyParts(k), ", ")
	if k.Cut {
		text += "…"
	}
	if len(k.Key) == 0 && !k.Cut {
		return "(one counter for all)"
	}
	return text
}
