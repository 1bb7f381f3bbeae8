package result

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Usage is the answer to a client that asks for its own usage. Times are in seconds.
type Usage struct {
	Rules []RuleUsage `json:"rules"`
}

// RuleUsage is how one rule stands for the client's key.
type RuleUsage struct {
	Name    string        `json:"name"`
	Blocked *int64        `json:"blocked,omitempty"` // of a rule with a block: what is left of it, 0 if nothing
	Windows []WindowUsage `json:"windows"`           // nil: not known; empty: the rule does not limit this key

	HasBlock bool `json:"-"` // the rule has a block: Blocked is null if it is not known
}

// WindowUsage is one limit of a rule and what is used of it.
type WindowUsage struct {
	Name      string  `json:"name,omitempty"`
	Limit     uint32  `json:"limit"`
	Requests  uint32  `json:"requests,omitempty"` // what a token bucket gains in a period, if that is not its burst
	Per       float64 `json:"per,omitempty"`      // 0: the limit is on requests in flight
	Used      uint32  `json:"used"`
	Held      uint32  `json:"held"`
	Remaining uint32  `json:"remaining"`
	Reset     int64   `json:"reset"`

	PerNs int64 `json:"-"` // appended as Per
}

// Append appends the rule:
//
//	{"name":"per-user","blocked":0,"windows":[{"limit":100,"per":60,"used":3,"held":0,"remaining":97,"reset":42}]}
func (r *RuleUsage) Append(b []byte) []byte {
	b = policy.AppendString(append(b, `{"name":`...), r.Name)
	if r.HasBlock {
		b = member(b, "blocked", "")
		if r.Blocked == nil {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendInt(b, *r.Blocked, 10)
		}
	}
	b = member(b, "windows", "")
	if r.Windows == nil {
		return append(b, "null}"...)
	}
	b = append(b, '[')
	for i := range r.Windows {
		b = r.Windows[i].append(comma(b))
	}
	return append(b, "]}"...)
}

func (w *WindowUsage) append(b []byte) []byte {
	b = appendText(append(b, '{'), "name", w.Name)
	b = appendNumber(b, "limit", &w.Limit)
	if w.Requests > 0 {
		b = appendNumber(b, "requests", &w.Requests)
	}
	if w.PerNs > 0 {
		b = appendSeconds(member(b, "per", ""), w.PerNs)
	}
	b = appendNumber(appendNumber(b, "used", &w.Used), "held", &w.Held)
	b = appendNumber(b, "remaining", &w.Remaining)
	return append(strconv.AppendInt(member(b, "reset", ""), w.Reset, 10), '}')
}

// appendSeconds appends a time in seconds, with as many decimal places as it has.
func appendSeconds(b []byte, ns int64) []byte {
	b = strconv.AppendInt(b, ns/1e9, 10)
	part := ns % 1e9
	if part == 0 {
		return b
	}
	digits := strconv.AppendInt(nil, 1e9+part, 10)
	end := len(digits)
	for digits[end-1] == '0' {
		end--
	}
	return append(append(b, '.'), digits[1:end]...)
}
