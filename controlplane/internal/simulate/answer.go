package simulate

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// output is one line of output.
type output struct {
	line    *line
	policy  *policy.Policy // in force
	answer  result.Result
	status  int
	headers [][2]string
	stats   []byte // the filter's answer to op stats, as it is
	settled string // what the filter charged for an answer, as it is
	leased  *int64 // of an operation on a rule of scope cluster: what proxies hold of the key
}

func (o *output) append(b []byte) []byte {
	b = append(append(append(b, `{"`...), o.line.unit...), `":`...)
	b = append(b, o.line.time...)
	if o.line.Op != "" {
		b = policy.AppendString(append(b, `,"op":`...), o.line.Op)
	}
	a := &o.answer
	switch {
	case o.line.Answer != nil:
		return o.appendAnswer(b)
	case o.line.policy != nil:
		return append(b, `,"ok":true}`...)
	case o.stats != nil: // without the count of VMs, which are the simulation's own
		rules, _, _ := bytes.Cut(o.stats[1:], []byte(`,"vm_starts":`))
		return append(append(append(b, ','), rules...), '}')
	case a.Value != nil:
		return o.appendValue(b)
	}
	b = strconv.AppendBool(append(b, `,"allowed":`...), *a.Allowed)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(o.statusCode()), 10)
	if a.Exempt {
		b = append(b, `,"exempt":true`...)
	}
	if !*a.Allowed {
		b = policy.AppendString(append(b, `,"denied_by":`...), a.DeniedBy)
		b = result.AppendTime(b, "retry_after", *a.RetryNs, o.times())
	}
	b = result.AppendRules(append(b, `,"rules":`...), a.Rules, o.times())
	b = append(o.appendHeaders(append(b, `,"headers":{`...)), '}')
	return append(o.appendLeased(b), '}')
}

// appendAnswer appends what became of a part of an answer.
func (o *output) appendAnswer(b []byte) []byte {
	b = policy.AppendString(append(b, `,"answer":`...), *o.line.Answer)
	if o.line.Status != nil {
		passed := true
		o.answer.Allowed = &passed
		b = append(o.appendHeaders(append(b, `,"headers":{`...)), '}')
	}
	if o.settled != "" {
		b = append(append(b, `,"settled":`...), o.settled...)
	}
	return append(b, '}')
}

// times are the units of the answer: with a time in nanoseconds, both.
func (o *output) times() result.Times {
	if o.line.unit == "at_ns" {
		return result.Ms | result.Ns
	}
	return result.Ms
}

// statusCode is the status that the request got, or that the request would get
// which the operation stands for.
func (o *output) statusCode() int {
	switch {
	case o.status != 0:
		return o.status
	case *o.answer.Allowed:
		return http.StatusOK
	}
	for i := range o.policy.Rules {
		if r := &o.policy.Rules[i]; r.Name == o.answer.DeniedBy {
			return int(r.Response.Status)
		}
	}
	return int(policy.DefaultResponse().Status)
}

// appendValue appends the answer to an operation that is no decision.
func (o *output) appendValue(b []byte) []byte {
	value := *o.answer.Value
	b = append(b, `,"value":`...)
	if o.line.Op == "expires_at" {
		b = strconv.AppendInt(b, result.Milliseconds(value), 10)
		if o.times()&result.Ns != 0 {
			b = strconv.AppendInt(append(b, `,"value_ns":`...), value, 10)
		}
	} else {
		b = strconv.AppendInt(b, value, 10)
	}
	if o.answer.Windows != nil {
		b = result.AppendWindows(append(b, `,"windows":`...), o.answer.Windows, o.times())
	}
	b = result.AppendHeld(b, o.answer.Held)
	return append(o.appendLeased(b), '}')
}

func (o *output) appendLeased(b []byte) []byte {
	if o.leased == nil {
		return b
	}
	return strconv.AppendInt(append(b, `,"leased":`...), *o.leased, 10)
}

// appendHeaders appends the response headers about limits; of a denial, all that
// its response gives.
func (o *output) appendHeaders(b []byte) []byte {
	first := true
	for _, h := range o.headers {
		if !o.isAboutLimits(h[0], h[1]) {
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

func (o *output) isAboutLimits(name, value string) bool {
	switch {
	case name == "retry-after", strings.HasPrefix(name, "ratelimit"), strings.HasPrefix(name, "x-ratelimit"):
		return true
	case name == "content-length", name == "x-envoy-ratelimited", name == "content-type" && value == "text/plain":
		return false // the same on every denial
	}
	return !*o.answer.Allowed
}
