package replay

import (
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// warn says what makes figures other than a reader would think.
func (r *run) warn() error {
	add := func(format string, values ...any) { r.warnings = append(r.warnings, fmt.Sprintf(format, values...)) }
	for _, field := range r.log.Empty {
		add("no line has a value of %s", field)
	}
	for _, s := range r.sides {
		if n := s.fleet.Hurried; n > 0 {
			add("%s: %d answers came early, because too many requests ran at once", s.Name, n)
		}
		for _, c := range s.rules {
			rule, grain := c.policy, time.Duration(r.log.GrainNs)
			for j := range rule.Limits {
				if fillsIn(&rule.Limits[j]) <= grain {
					add("rule %s: limit %d is finer than the log's clock of %s: "+
						"requests of one instant look like a burst, so more are denied here than by a proxy", rule.Name, j, grain)
				}
			}
			if lacks := lacking(rule, r.log); lacks != "" {
				add("rule %s: its figures cannot be told, because the log lacks %s", rule.Name, lacks)
			} else if rule.Concurrency() && grain >= 100*time.Millisecond {
				add("rule %s: the log's clock of %s is coarse: requests of one instant look as if they ran at once, "+
					"so more are denied here than by a proxy", rule.Name, grain)
			}
			evicted, err := s.fleet.Counted(rule.Name, "evicted")
			if err != nil {
				return err
			}
			if evicted > 0 {
				add("rule %s: %d keys were evicted, because more were live than its capacity of %d holds: "+
					"it may deny other keys early", rule.Name, evicted, rule.Capacity)
			}
		}
	}
	return nil
}

// fillsIn is the time in which a limit's units come again.
func fillsIn(l *policy.Limit) time.Duration {
	ns := l.PeriodNs
	if l.Algorithm == limit.TokenBucket && l.Limit > 0 {
		ns = min(ns, int64(float64(ns)*float64(l.Burst)/float64(l.Limit)))
	}
	return time.Duration(ns)
}

const noTimes = "times of answers; --map duration_ms=NAME names a field that has them"

// lacking is what a rule waits for that the log does not say.
func lacking(r *policy.Rule, log *accesslog.Log) string {
	switch s := r.Settle; {
	case r.Concurrency() && !log.Has(accesslog.FieldTook):
		return noTimes
	case s == nil:
		return ""
	case len(s.When.Status) > 0 && log.NoStatus:
		return "statuses"
	case len(s.When.GRPCStatus) > 0:
		return "gRPC statuses"
	case len(s.When.Headers) > 0, s.To == policy.SettleHeader, s.To == policy.SettleTrailer:
		return "headers and trailers of answers"
	case bytesFields[s.To] != "" && !log.Has(bytesFields[s.To]):
		return "bytes of bodies; --map " + bytesFields[s.To] + "=NAME names a field that has them"
	case s.To == policy.SettleMilliseconds && !log.Has(accesslog.FieldTook):
		return noTimes
	case s.To.Tokens():
		return "tokens"
	}
	return ""
}
