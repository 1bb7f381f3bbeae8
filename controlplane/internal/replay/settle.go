package replay

import (
	"encoding/binary"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// answerFields lists what a policy waits for of answers.
func answerFields(p *policy.Policy) (fields []string) {
	for i := range p.Rules {
		r := &p.Rules[i]
		if !r.Holds() || r.Mode == policy.ModeOff {
			continue
		}
		fields = append(fields, accesslog.FieldTook)
		if r.Settle != nil && bytesFields[r.Settle.To] != "" {
			fields = append(fields, bytesFields[r.Settle.To])
		}
	}
	return fields
}

var bytesFields = map[policy.Settled]string{
	policy.SettleRequestBytes: accesslog.FieldReceived, policy.SettleResponseBytes: accesslog.FieldSent,
}

// measure has the proxy know how many bytes the log says that there were.
func measure(s *sim.Request, line *accesslog.Request) {
	if line.Received+line.Sent == 0 {
		return
	}
	if s.Properties == nil {
		s.Properties = map[string][]byte{}
	}
	s.Properties["request.size"] = binary.LittleEndian.AppendUint64(nil, uint64(line.Received))
	s.Properties["response.size"] = binary.LittleEndian.AppendUint64(nil, uint64(line.Sent))
}

// answerOf is the answer that a line has, nil for the status 0 of Envoy: there was none. In a log
// without statuses it is 200.
func answerOf(line *accesslog.Request, log *accesslog.Log) *sim.Response {
	switch {
	case line.Status > 100:
		return &sim.Response{Status: line.Status}
	case log.Has(accesslog.FieldStatus):
		return nil
	}
	return &sim.Response{Status: 200}
}

// settleWarnings name the rules that wait for what the log does not have of answers.
func settleWarnings(p *policy.Policy, log *accesslog.Log) (warnings []string) {
	for i := range p.Rules {
		r := &p.Rules[i]
		switch lacks := lacking(r, log); {
		case r.Mode == policy.ModeOff:
		case lacks != "":
			warnings = append(warnings, "rule "+r.Name+": its figures cannot be told, because the log lacks "+lacks)
		case r.Concurrency() && log.GrainNs >= int64(100*time.Millisecond):
			warnings = append(warnings, "rule "+r.Name+": the log's clock of "+time.Duration(log.GrainNs).String()+
				" is coarse: requests of one instant look as if they ran at once, so more are denied here than by a proxy")
		}
	}
	return warnings
}

// lacking is what a rule waits for that the log does not say.
func lacking(r *policy.Rule, log *accesslog.Log) string {
	switch s := r.Settle; {
	case r.Concurrency() && !log.Has(accesslog.FieldTook):
		return "times of answers"
	case s == nil:
		return ""
	case len(s.When.Status) > 0 && log.NoStatus:
		return "statuses"
	case len(s.When.GRPCStatus) > 0:
		return "gRPC statuses"
	case len(s.When.Headers) > 0, s.To == policy.SettleHeader, s.To == policy.SettleTrailer:
		return "headers and trailers of answers"
	case bytesFields[s.To] != "" && !log.Has(bytesFields[s.To]):
		return "bytes of bodies"
	case s.To == policy.SettleMilliseconds && !log.Has(accesslog.FieldTook):
		return "times of answers"
	case s.To.Tokens():
		return "tokens"
	}
	return ""
}
