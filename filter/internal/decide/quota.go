package decide

import (
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Quota is what the last check of a subject of scope cluster has found. Only its source writes it.
type Quota struct {
	From        From  // where the units are: Take, Refund and Usage follow it
	MonotonicNs int64 // when it looked, by the monotonic clock
	// How the windows stand over all proxies, as the quota service has said last, in the order of records. If the subject
	// has a View and is not counted here, each window has one.
	Standings []leased.Standing
}

// BeginQuotaCheck begins a check of a subject of scope cluster, or a look or an operation, at an instant of both
// clocks. No Record of this proxy is read, unless OwnShare decides in the end.
func (s *Subject) BeginQuotaCheck(wallNs, monotonicNs int64) {
	s.CountedKey.Windows = s.Windows
	s.beginReading(wallNs, monotonicNs)
}

// isCountedHere reports whether what this proxy has counted decides about the subject. In a rule of scope cluster that
// is so only by its own share: else the quota service has said how the key stands, or must be asked.
func (s *Subject) isCountedHere() bool {
	return s.Rule.Policy.Scope != policy.ScopeCluster || s.Quota.From == OwnShare
}

// isByOnUnavailable reports whether on_unavailable has decided about the subject: by this proxy's share, or because
// nothing could decide in the service's place. It has not if another rule denied before.
func (s *Subject) isByOnUnavailable() bool {
	switch s.finding.Found {
	case Silent, Starting:
		return true
	default:
		return s.Quota.From == OwnShare && s.fate != notAsked
	}
}

// From is where a subject of scope cluster takes its units from.
type From uint8

// The places that have units.
const (
	Nowhere    From = iota
	Allotted        // the grant for which the request has waited
	LeaseTable      // what the proxy has leased
	OwnShare        // what the proxy may admit while the service is silent
)
