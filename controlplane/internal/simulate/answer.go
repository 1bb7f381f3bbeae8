package simulate

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// verdict is the filter's report, times in nanoseconds.
type verdict struct {
	Allowed      bool   `json:"allowed"`
	DeniedBy     string `json:"denied_by"`
	RetryAfterNs int64  `json:"retry_after_ns"`
	Rules        []struct {
		Rule      string            `json:"rule"`
		Key       []json.RawMessage `json:"key"`
		Mode      string            `json:"mode"`
		Allowed   bool              `json:"allowed"`
		Reason    string            `json:"reason"`
		Remaining *uint32           `json:"remaining"`
		Windows   []window          `json:"windows"`
	} `json:"rules"`

	// Of operations that are no decision.
	Value   *int64   `json:"value"`
	Windows []window `json:"windows"`
}

type window struct {
	Name      string `json:"name"`
	Unlimited bool   `json:"unlimited"`
	Limit     uint32 `json:"limit"`
	PerNs     int64  `json:"per_ns"`
	Used      uint32 `json:"used"`
	Remaining uint32 `json:"remaining"`
	ResetNs   int64  `json:"reset_ns"`
}

// answer is one line of output.
type answer struct {
	line    *line
	policy  *policy.Policy // in force
	verdict verdict
	status  int
	headers [][2]string
	stats   []byte // the filter's answer to op stats, as it is
}

func (a *answer) append(b []byte) []byte {
	b = append(append(append(b, `{"`...), a.line.unit...), `":`...)
	b = append(b, a.line.time...)
	if a.line.op != "" {
		b = policy.AppendString(append(b, `,"op":`...), a.line.op)
	}
	if a.line.policy != nil {
		return append(b, `,"ok":true}`...)
	}
	v := &a.verdict
	switch {
	case a.stats != nil:
		return append(append(b, ','), a.stats[1:]...)
	case v.Value != nil:
		return a.appendValue(b)
	}
	b = strconv.AppendBool(append(b, `,"allowed":`...), v.Allowed)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(a.statusCode()), 10)
	if !v.Allowed {
		b = policy.AppendString(append(b, `,"denied_by":`...), v.DeniedBy)
		b = a.appendTime(b, `,"retry_after`, v.RetryAfterNs)
	}
	b = append(b, `,"rules":[`...)
	for i := range v.Rules {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.appendRule(b, i)
	}
	return append(a.appendHeaders(append(b, `],"headers":{`...)), "}}"...)
}

// statusCode is the status a request got; an operation is answered as the
// request it stands for would be.
func (a *answer) statusCode() int {
	switch {
	case a.status != 0:
		return a.status
	case a.verdict.Allowed:
		return http.StatusOK
	}
	for i := range a.policy.Rules {
		if r := &a.policy.Rules[i]; r.Name == a.verdict.DeniedBy {
			return int(r.Response.Status)
		}
	}
	return int(policy.DefaultResponse().Status)
}

func (a *answer) appendRule(b []byte, i int) []byte {
	r := &a.verdict.Rules[i]
	b = policy.AppendString(append(b, `{"rule":`...), r.Rule)
	b = append(b, `,"key":[`...)
	for j, part := range r.Key {
		if j > 0 {
			b = append(b, ',')
		}
		b = append(b, part...)
	}
	b = policy.AppendString(append(b, `],"mode":`...), r.Mode)
	b = strconv.AppendBool(append(b, `,"allowed":`...), r.Allowed)
	if r.Reason != "" {
		b = policy.AppendString(append(b, `,"reason":`...), r.Reason)
	}
	if r.Remaining != nil {
		b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(*r.Remaining), 10)
	}
	b = a.appendWindows(b, r.Windows)
	return append(b, '}')
}

// appendValue writes the answer to an operation that is no decision.
func (a *answer) appendValue(b []byte) []byte {
	const perMs = 1_000_000
	value := *a.verdict.Value
	if a.line.op == "expires_at" {
		b = strconv.AppendInt(append(b, `,"value":`...), (value+perMs-1)/perMs, 10)
		if a.line.unit == "at_ns" {
			b = strconv.AppendInt(append(b, `,"value_ns":`...), value, 10)
		}
	} else {
		b = strconv.AppendInt(append(b, `,"value":`...), value, 10)
	}
	if a.line.op != "clean" {
		b = a.appendWindows(b, a.verdict.Windows)
	}
	return append(b, '}')
}

func (a *answer) appendWindows(b []byte, windows []window) []byte {
	b = append(b, `,"windows":[`...)
	for i := range windows {
		w := &windows[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		if w.Name != "" {
			b = append(policy.AppendString(append(b, `"name":`...), w.Name), ',')
		}
		if w.Unlimited {
			b = append(b, `"unlimited":true`...)
		} else {
			b = strconv.AppendUint(append(b, `"limit":`...), uint64(w.Limit), 10)
		}
		b = a.appendTime(b, `,"per`, w.PerNs)
		b = strconv.AppendUint(append(b, `,"used":`...), uint64(w.Used), 10)
		if !w.Unlimited {
			b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(w.Remaining), 10)
		}
		b = append(a.appendTime(b, `,"reset`, w.ResetNs), '}')
	}
	return append(b, ']')
}

// appendTime writes a duration as name_ms, rounded up, and for input in ns also
// as name_ns. Never stays -1.
func (a *answer) appendTime(b []byte, name string, ns int64) []byte {
	const perMs = 1_000_000
	ms := int64(-1)
	if ns >= 0 {
		ms = (ns + perMs - 1) / perMs
	}
	b = strconv.AppendInt(append(append(b, name...), `_ms":`...), ms, 10)
	if a.line.unit == "at_ns" {
		b = strconv.AppendInt(append(append(b, name...), `_ns":`...), ns, 10)
	}
	return b
}

// appendHeaders writes the response headers that speak of limits: of a denial
// all that its response gives.
func (a *answer) appendHeaders(b []byte) []byte {
	first := true
	for _, h := range a.headers {
		if !a.speaksOfLimits(h[0], h[1]) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = policy.AppendString(append(policy.AppendString(b, h[0]), ':'), h[1])
	}
	return b
}

func (a *answer) speaksOfLimits(name, value string) bool {
	switch {
	case name == "retry-after", strings.HasPrefix(name, "ratelimit"), strings.HasPrefix(name, "x-ratelimit"):
		return true
	case name == "content-length", name == "x-envoy-ratelimited", name == "content-type" && value == "text/plain":
		return false // the same on every denial
	}
	return !a.verdict.Allowed
}
