package engine

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// units is the source of a rule's units: an attempt reads it, takes its cost
// from it, and refunds the cost when another rule denies the request.
//
// The records in shared data are the source of rules of scope proxy, leases that
// of rules of scope cluster. Where leases hold too few units, read returns pending.
// Then Engine.decide counts nothing, and the verdict is pending with the wants of
// all its attempts. The host asks the quota service, pauses the request, and calls
// Decide again on the answer. A request that another rule denies asks for nothing,
// because decide looks at denials first.
type units interface {
	// read finds out how the attempt's key stands at now, for the attempt's cost
	// and what rules before it take from the same record. again says that the
	// attempt has read before. Of an outcome other than granted and failed,
	// a.passNs is when the units are free.
	read(a *Attempt, now int64, again bool) outcome
	// take takes the attempt's cost. Where read did not grant it, a.passNs becomes
	// when the next hit like this one passes.
	take(a *Attempt) outcome
	// refund undoes take. It reports whether every window has the units back.
	refund(a *Attempt, now int64) (complete bool)
	// usage returns the usage of a window of rule.windows, as read last.
	usage(a *Attempt, window int) *limit.Usage
}

// outcome is what a source says of an attempt.
type outcome uint8

const (
	granted outcome = iota // read: the units are free; take: they are taken
	short                  // read: too few units are free
	full                   // no room for the key's record
	raced                  // take: another worker wrote first, so read again
	failed                 // a call into the proxy failed
	pending                // read: the quota service must be asked
	crowded                // read: it must be asked, and too many wait for it already
	silent                 // read: it cannot be asked, and nothing decides in its place
)

// records is the source of rules that count in shared data.
type records struct {
	table *state.Table
}

func (s *records) read(a *Attempt, now int64, again bool) outcome {
	var status state.Status
	if again {
		status = s.table.Reread(&a.entry, a.limits, now)
	} else {
		status = s.table.Read(&a.entry, a.limits, now)
	}
	if status != state.OK {
		return failed
	}
	return s.granted(a, s.passes(a))
}

// granted judges by when the hit passes.
func (s *records) granted(a *Attempt, passNs int64) outcome {
	a.passNs = passNs
	if a.rule.policy.OnFull == policy.FullDeny && a.Cost > 0 && passNs != limit.Never && !a.entry.HasRecord() {
		vacantNs := s.table.Earliest(&a.entry)
		if vacantNs == limit.Never || vacantNs > max(passNs, a.entry.Now) {
			a.passNs = vacantNs
			return full
		}
	}
	if passNs == limit.Never || passNs > a.entry.Now {
		return short
	}
	return granted
}

// passes returns when the hit passes together with those that go before it.
func (s *records) passes(a *Attempt) int64 {
	return s.table.Check(&a.entry, a.units())
}

// units are the attempt's and those that go before it.
func (a *Attempt) units() uint32 { return min(a.Cost, math.MaxUint32-a.ahead) + a.ahead }

func (s *records) take(a *Attempt) outcome {
	switch s.table.Commit(&a.entry, a.Cost, a.evicts()) {
	case state.OK:
		a.stored()
		if !a.Allowed {
			if passNs := s.passes(a); passNs > a.entry.Now {
				a.passNs = passNs
			}
		}
		return granted
	case state.Full:
		return full
	case state.Mismatch:
		return raced
	default:
		return failed
	}
}

func (s *records) refund(a *Attempt, now int64) bool {
	return s.table.Refund(&a.entry, now, a.Cost)
}

func (s *records) usage(a *Attempt, window int) *limit.Usage {
	return s.table.Usage(&a.entry, window)
}
