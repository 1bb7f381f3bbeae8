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
	result  result.Result
	status  int
	headers [][2]string
	usage   []byte // what a client is told that asks for its usage, as it is
	stats   []byte // the filter's answer to op stats, as it is
	settled string // what the filter charged for an answer, as it is
	leased  *int64 // of an operation on a rule of scope cluster: what proxies hold of the key
}

// append appends the line, as docs and other programs know it.
func (o *output) append(b []byte) []byte {
	b = append(append(append(b, `{"`...), o.line.unit...), `":`...)
	b = append(b, o.line.time...)
	if o.line.Op != "" {
		b = policy.AppendString(append(b, `,"op":`...), o.line.Op)
	}
	switch {
	case o.line.kind() == policyLine:
		b = append(b, `,"ok":true`...)
	case o.line.kind() == answerLine:
		b = o.appendAnswer(b)
	case o.stats != nil: // without the count of VMs, which are the simulation's own
		rules, _, _ := bytes.Cut(o.stats[1:], []byte(`,"vm_starts":`))
		b = append(append(b, ','), rules...)
	case o.result.Value != nil:
		b = o.appendValue(b)
	default:
		b = o.appendDecision(b)
	}
	return append(b, '}')
}

// appendDecision appends what the filter decided.
func (o *output) appendDecision(b []byte) []byte {
	a := &o.result
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
	b = o.appendLeased(o.appendHeaders(b, !*a.Allowed))
	if a.IsUsage && *a.Allowed && len(o.usage) > 0 { // an answer to HEAD has no body
		b = append(append(b, `,"usage":`...), bytes.TrimSpace(o.usage)...)
	}
	return b
}

// appendAnswer appends what became of a part of an answer.
func (o *output) appendAnswer(b []byte) []byte {
	b = policy.AppendString(append(b, `,"answer":`...), *o.line.Answer)
	if o.line.Status != nil {
		b = o.appendHeaders(b, false)
	}
	if o.settled != "" {
		b = append(append(b, `,"settled":`...), o.settled...)
	}
	return b
}

// appendValue appends the answer to an operation that is not a decision.
func (o *output) appendValue(b []byte) []byte {
	value := *o.result.Value
	b = append(b, `,"value":`...)
	if o.line.Op == "expires_at" {
		b = strconv.AppendInt(b, result.Milliseconds(value), 10)
		if o.times()&result.Ns != 0 {
			b = strconv.AppendInt(append(b, `,"value_ns":`...), value, 10)
		}
	} else {
		b = strconv.AppendInt(b, value, 10)
	}
	if o.result.Windows != nil {
		b = result.AppendWindows(append(b, `,"windows":`...), o.result.Windows, o.times())
	}
	return o.appendLeased(result.AppendBlocked(result.AppendHeld(b, o.result.Held), o.result.BlockedNs, o.times()))
}

func (o *output) appendLeased(b []byte) []byte {
	if o.leased == nil {
		return b
	}
	return strconv.AppendInt(append(b, `,"leased":`...), *o.leased, 10)
}

// appendHeaders appends the response headers about limits. Of a denial it appends all that
// its response gives.
func (o *output) appendHeaders(b []byte, isDenial bool) []byte {
	b = append(b, `,"headers":{`...)
	isFirst := true
	for _, h := range o.headers {
		name, value := h[0], h[1]
		isWritten := isAboutLimits(name) || isDenial && !isOnEveryDenial(name, value)
		if !isWritten {
			continue
		}
		if !isFirst {
			b = append(b, ',')
		}
		isFirst = false
		b = policy.AppendString(b, name)
		b = policy.AppendString(append(b, ':'), value)
	}
	return append(b, '}')
}

func isAboutLimits(name string) bool {
	return name == "retry-after" || strings.HasPrefix(name, "ratelimit") || strings.HasPrefix(name, "x-ratelimit")
}

func isOnEveryDenial(name, value string) bool {
	return name == "content-length" || name == "x-envoy-ratelimited" || name == "content-type" && value == "text/plain"
}

// times are the units of the answer: if the line's time is in nanoseconds, both.
func (o *output) times() result.Times {
	if o.line.unit == "at_ns" {
		return result.Ms | result.Ns
	}
	return result.Ms
}

// statusCode is the status of the response to a request. An operation gets the status that a request
// with its verdict would get.
func (o *output) statusCode() int {
	switch {
	case o.status != 0:
		return o.status
	case *o.result.Allowed:
		return http.StatusOK
	}
	for i := range o.policy.Rules {
		if r := &o.policy.Rules[i]; r.Name == o.result.DeniedBy {
			return int(r.Response.Status)
		}
	}
	return int(policy.DefaultResponse().Status)
}
