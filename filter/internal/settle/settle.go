// Package settle works out what a request has really cost, once its answer is known.
//
// Its invariant: it never changes an answer, and what an answer does not say costs what
// the policy gives for that, never nothing by accident. It knows the proxy as Answer alone,
// and must never import the proxy-wasm SDK.
package settle

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Answer is what the proxy knows of an answer that is over.
type Answer interface {
	// Status is 0 where the client got no answer.
	Status() uint16
	// GRPCStatus is -1 where it never came.
	GRPCStatus() int
	Header(name string) (value string, present bool)
	Trailer(name string) (value string, present bool)
	RequestBytes() int64
	ResponseBytes() int64
	DurationNs() int64
	// Usage is what the answer said of tokens. ok is false where nobody read it.
	Usage() (u usage.Usage, ok bool)
}

// Cost returns what a request has cost that held so many units of a rule, and what that is
// made of.
func Cost(r *policy.Rule, held uint32, a Answer) (units uint32, by decide.By) {
	p := r.Settle
	if p == nil || !meets(&p.When, a) {
		return 0, decide.ByNone
	}
	n, by := value(p, held, a)
	return uint32(min(n, int64(p.Max))), by
}

// value is the cost of an answer that meets the condition.
func value(p *policy.Settle, held uint32, a Answer) (units int64, by decide.By) {
	switch to := p.To; {
	case to.Tokens():
		return tokens(p, held, a)
	case a.Status() == 0:
		return int64(held), decide.ByCost
	}
	switch p.To {
	case policy.SettleRequestBytes:
		return a.RequestBytes(), decide.ByAnswer
	case policy.SettleResponseBytes:
		return a.ResponseBytes(), decide.ByAnswer
	case policy.SettleMilliseconds:
		return (a.DurationNs() + 999_999) / 1_000_000, decide.ByAnswer
	case policy.SettleHeader:
		text, present := a.Header(p.Field)
		return said(p, held, text, present)
	case policy.SettleTrailer:
		text, present := a.Trailer(p.Field)
		return said(p, held, text, present)
	default:
		return int64(held), decide.ByCost
	}
}

// said is what a header or a trailer says.
func said(p *policy.Settle, held uint32, text string, present bool) (units int64, by decide.By) {
	if n, ok := rules.ParseNumber(text); present && ok {
		return int64(n), decide.ByAnswer
	}
	return unknown(p, held)
}

// unknown is the cost of an answer that does not say it, where there is no estimate.
func unknown(p *policy.Settle, held uint32) (units int64, by decide.By) {
	if p.Unknown == policy.UnknownNothing {
		return 0, decide.ByNone
	}
	return int64(held), decide.ByCost
}

// tokens is what the answer said that it took, else an estimate of no less than what was
// held.
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
	case p.Unknown != policy.UnknownEstimate && a.Status() != 0: // whoever hangs up at once chooses no price
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

// meets reports whether the answer costs anything. What never came counts as met.
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
		value, present := a.Header(h.Name)
		if holds, _ := h.Value.Holds(value, present, true); !holds {
			return false
		}
	}
	return true
}
