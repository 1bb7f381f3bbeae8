// Package settle works out what a request has really cost, once its answer is known.
//
// Its invariant: it never changes an answer. If an answer does not say its cost, the policy
// says what that costs; it is never nothing by accident. It knows the proxy only as Exchange, and
// must never import the proxy-wasm SDK.
package settle

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Exchange is what the proxy knows of a request and its answer when both are over.
type Exchange interface {
	// Status is 0 if the client got no answer: it has left, the upstream has broken off, or a
	// timeout of the proxy came before the upstream's headers.
	Status() uint16
	// GRPCStatus is -1 if it never came.
	GRPCStatus() int
	Header(name string) (value string, present bool)
	// HeaderValues returns each value of a header.
	HeaderValues(name string) []string
	Trailer(name string) (value string, present bool)
	// RequestBytes is how much of the request's body has come, whatever its headers announced.
	RequestBytes() int64
	// ResponseBytes is how much of the answer's body has left, 0 if there is no answer.
	ResponseBytes() int64
	DurationNs() int64
	// Usage is the usage of tokens in the answer. ok is false if nobody read it.
	Usage() (u usage.Usage, ok bool)
	// Path is that of the request, with its query.
	Path() string
}

// Cost returns what a request has cost that held so many units of a rule, how that is known, and the
// tokens that had a price.
func Cost(r *policy.Rule, held uint32, x Exchange) (units uint32, by metrics.By, priced policy.Tokens) {
	p := r.Settle
	if p == nil || !meets(&p.When, x) {
		return 0, metrics.ByNone, priced
	}
	var n int64
	if p.To == policy.SettlePrice {
		n, by, priced = price(p, held, x)
	} else {
		n, by = value(p, held, x)
	}
	return uint32(min(n, int64(p.Max))), by, priced
}

// value is the cost of an answer that meets the condition. If none came it is what was held,
// or what the proxy knows if that is more: disconnecting early must not lower the charge.
func value(p *policy.Settle, held uint32, x Exchange) (units int64, by metrics.By) {
	hasAnswer := x.Status() != 0
	switch {
	case p.To.Tokens():
		return tokens(p, held, x)
	case p.Field != "" && hasAnswer:
		return fromField(p, held, x)
	}
	if n, ok := measured(p.To, x); ok && (hasAnswer || n > int64(held)) {
		return n, metrics.ByAnswer
	}
	return int64(held), metrics.ByCost
}

// measured is what the proxy itself knows. ok is false if it knows nothing.
func measured(to policy.Settled, x Exchange) (units int64, ok bool) {
	switch to {
	case policy.SettleRequestBytes:
		return x.RequestBytes(), true
	case policy.SettleResponseBytes:
		return x.ResponseBytes(), true
	case policy.SettleMilliseconds:
		return (x.DurationNs() + 999_999) / 1_000_000, true
	default:
		return 0, false
	}
}

// fromField is the cost in a header or a trailer.
func fromField(p *policy.Settle, held uint32, x Exchange) (units int64, by metrics.By) {
	read := x.Header
	if p.To == policy.SettleTrailer {
		read = x.Trailer
	}
	text, present := read(p.Field)
	if n, ok := rules.ParseNumber(text); present && ok {
		return int64(n), metrics.ByAnswer
	}
	return unknown(p, held)
}

// unknown is the cost of an answer that does not say it, without an estimate.
func unknown(p *policy.Settle, held uint32) (units int64, by metrics.By) {
	if p.Unknown == policy.UnknownNothing {
		return 0, metrics.ByNone
	}
	return int64(held), metrics.ByCost
}

// tokens is the usage in the answer. If the answer does not say it, the policy's "unknown" says what
// the request costs. If there is no answer, the cost is always an estimate, because disconnecting
// early must not choose the price. An estimate is no less than what was held.
func tokens(p *policy.Settle, held uint32, x Exchange) (units int64, by metrics.By) {
	u := usageOf(x)
	known := true
	if p.To != policy.SettleOutputTokens {
		known = u.InputKnown
	}
	if p.To != policy.SettleInputTokens {
		known = known && u.OutputKnown
	}
	switch {
	case known:
		return sum(p.To, u.Input, u.Output), metrics.ByAnswer
	case p.To == policy.SettleTokens && u.Total > 0:
		return u.Total, metrics.ByAnswer
	case p.Unknown != policy.UnknownEstimate && x.Status() != 0:
		return unknown(p, held)
	}
	input, output := u.Estimate(x.RequestBytes())
	return max(sum(p.To, input, output), int64(held)), metrics.ByEstimate
}

// usageOf is what the answer says of its tokens. If nobody read it, only its size is known.
func usageOf(x Exchange) usage.Usage {
	u, read := x.Usage()
	if !read {
		u = usage.Usage{Failure: usage.UnknownType, Bytes: x.ResponseBytes()}
	}
	return u
}

func sum(to policy.Settled, input, output int64) int64 {
	switch to {
	case policy.SettleInputTokens:
		return input
	case policy.SettleOutputTokens:
		return output
	default:
		return input + output
	}
}

// meets reports whether the answer costs anything. A condition on what never came is met.
func meets(when *policy.Answer, x Exchange) bool {
	status := x.Status()
	if status == 0 {
		return when.NoAnswer
	}
	return MeetsStatus(when, status) && meetsGRPC(when, x.GRPCStatus()) && meetsHeaders(when, x)
}

// MeetsStatus reports whether an answer with that status may cost anything.
func MeetsStatus(when *policy.Answer, status uint16) bool {
	for _, r := range when.Status {
		if r.Low <= status && status <= r.High {
			return true
		}
	}
	return len(when.Status) == 0
}

func meetsGRPC(when *policy.Answer, status int) bool {
	for _, s := range when.GRPCStatus {
		if int(s) == status {
			return true
		}
	}
	return len(when.GRPCStatus) == 0 || status < 0
}

func meetsHeaders(when *policy.Answer, x Exchange) bool {
	for i := range when.Headers {
		h := &when.Headers[i]
		if !holdsForAny(&h.Value, x.HeaderValues(h.Name)) {
			return false
		}
	}
	return true
}

// holdsForAny reports whether the pattern holds for one of a header's values, as in a match. If
// there are none, it is whether it holds for a missing header.
func holdsForAny(p *policy.Pattern, values []string) bool {
	if len(values) == 0 {
		holds, _ := p.Holds("", false, true)
		return holds
	}
	for _, value := range values {
		if holds, _ := p.Holds(value, true, true); holds {
			return true
		}
	}
	return false
}
