// Package settle works out what a request has really cost, once its answer is known.
//
// Its invariant: it never changes an answer. If an answer does not say its cost, the policy
// says what that costs; it is never nothing by accident. It knows the proxy only as Answer, and
// must never import the proxy-wasm SDK.
package settle

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Answer is what the proxy knows of an answer that is over.
type Answer interface {
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
}

// Cost returns what a request has cost that held so many units of a rule, and how that is
// known.
func Cost(r *policy.Rule, held uint32, a Answer) (units uint32, by decide.By) {
	p := r.Settle
	if p == nil || !meets(&p.When, a) {
		return 0, decide.ByNone
	}
	n, by := value(p, held, a)
	return uint32(min(n, int64(p.Max))), by
}

// value is the cost of an answer that meets the condition. If none came it is what was held,
// or what the proxy knows if that is more: disconnecting early must not lower the charge.
func value(p *policy.Settle, held uint32, a Answer) (units int64, by decide.By) {
	none := a.Status() == 0
	switch {
	case p.To.Tokens():
		return tokens(p, held, a)
	case p.Field != "" && !none:
		return fromField(p, held, a)
	}
	if n, ok := measured(p.To, a); ok && (!none || n > int64(held)) {
		return n, decide.ByAnswer
	}
	return int64(held), decide.ByCost
}

// measured is what the proxy itself knows. ok is false if it knows nothing.
func measured(to policy.Settled, a Answer) (units int64, ok bool) {
	switch to {
	case policy.SettleRequestBytes:
		return a.RequestBytes(), true
	case policy.SettleResponseBytes:
		return a.ResponseBytes(), true
	case policy.SettleMilliseconds:
		return (a.DurationNs() + 999_999) / 1_000_000, true
	default:
		return 0, false
	}
}

// fromField is the cost in a header or a trailer.
func fromField(p *policy.Settle, held uint32, a Answer) (units int64, by decide.By) {
	read := a.Header
	if p.To == policy.SettleTrailer {
		read = a.Trailer
	}
	text, present := read(p.Field)
	if n, ok := rules.ParseNumber(text); present && ok {
		return int64(n), decide.ByAnswer
	}
	return unknown(p, held)
}

// unknown is the cost of an answer that does not say it, without an estimate.
func unknown(p *policy.Settle, held uint32) (units int64, by decide.By) {
	if p.Unknown == policy.UnknownNothing {
		return 0, decide.ByNone
	}
	return int64(held), decide.ByCost
}

// tokens is the usage in the answer, else an estimate that is no less than what was held.
func tokens(p *policy.Settle, held uint32, a Answer) (units int64, by decide.By) {
	u, read := a.Usage()
	if !read {
		u = usage.Usage{Failure: usage.UnknownType, Bytes: a.ResponseBytes()}
	}
	known := true
	if p.To != policy.SettleOutputTokens {
		known = u.InputKnown
	}
	if p.To != policy.SettleInputTokens {
		known = known && u.OutputKnown
	}
	switch {
	case known:
		return sum(p.To, u.Input, u.Output), decide.ByAnswer
	case p.To == policy.SettleTokens && u.Total > 0:
		return u.Total, decide.ByAnswer
	case p.Unknown != policy.UnknownEstimate && a.Status() != 0: // disconnecting early must not choose the price
		return unknown(p, held)
	}
	input, output := u.Estimate(a.RequestBytes())
	return max(sum(p.To, input, output), int64(held)), decide.ByEstimate
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
func meets(when *policy.Answer, a Answer) bool {
	status := a.Status()
	if status == 0 {
		return when.NoAnswer
	}
	return MeetsStatus(when, status) && meetsGRPC(when, a.GRPCStatus()) && meetsHeaders(when, a)
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

func meetsHeaders(when *policy.Answer, a Answer) bool {
	for i := range when.Headers {
		h := &when.Headers[i]
		if !holdsForAny(&h.Value, a.HeaderValues(h.Name)) {
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
