package replay

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// answered has the upstream give the answer that the log has: a status, at once. Of a line
// without one it is 200.
func answered(s *sim.Request, line *accesslog.Request) *sim.Request {
	if line.Status >= 200 {
		s.Upstream = func(*sim.Request) (*sim.Response, error) { return &sim.Response{Status: line.Status}, nil }
	}
	return s
}

// settleWarnings name the rules that wait for what the log does not have of answers.
func settleWarnings(p *policy.Policy, noStatus bool) (warnings []string) {
	for i := range p.Rules {
		r := &p.Rules[i]
		if lacks := lacking(r, noStatus); lacks != "" && r.Mode != policy.ModeOff {
			warnings = append(warnings, "rule "+r.Name+": its figures cannot be told, because the log lacks "+lacks)
		}
	}
	return warnings
}

// lacking is what a rule waits for that replay does not know.
func lacking(r *policy.Rule, noStatus bool) string {
	switch s := r.Settle; {
	case r.Concurrency():
		return "how many requests ran at once"
	case s == nil:
		return ""
	case len(s.When.Status) > 0 && noStatus:
		return "statuses"
	case len(s.When.GRPCStatus) > 0:
		return "gRPC statuses"
	case len(s.When.Headers) > 0, s.To == policy.SettleHeader, s.To == policy.SettleTrailer:
		return "headers and trailers of answers"
	case s.To == policy.SettleRequestBytes, s.To == policy.SettleResponseBytes:
		return "bytes of bodies"
	case s.To == policy.SettleMilliseconds:
		return "times of answers"
	case s.To.Tokens():
		return "tokens"
	}
	return ""
}
