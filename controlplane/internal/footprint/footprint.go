// Package footprint computes how much memory a policy may take in one Envoy.
//
// Its invariant: no Envoy takes more, which tests hold the filter to. It measures nothing itself.
package footprint

import (
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Footprint is how many keys a policy counts at a time, and the most memory that
// takes in one Envoy.
type Footprint struct {
	Counters int    `json:"counters"` // of rules that are not off
	Keys     uint64 `json:"keys"`     // live keys while a new key still finds a slot, or those that a worker reports
	Slots    uint64 `json:"slots"`    // keys that fit at the very most
	Bytes    uint64 `json:"bytes"`    // of all tables full
	// LeaseBytes and StandbyBytes are in Bytes: what rules of scope cluster lease, and
	// what those with on_unavailable: local count while the quota service is silent.
	LeaseBytes   uint64 `json:"lease_bytes,omitempty"`
	StandbyBytes uint64 `json:"standby_bytes,omitempty"`
	// VanishedBytes is what the tables of renamed and removed counters may take
	// beside them until their windows have ended.
	VanishedBytes uint64 `json:"vanished_bytes"`
	// The others are in the memory of each worker. No worker has more than their sum: see worker.go.

	// RuleBytes is for the rules themselves, while a policy of the same size takes the place of this one.
	RuleBytes uint64 `json:"rule_bytes"`
	// ExpressionBytes is what the regular expressions take.
	ExpressionBytes uint64 `json:"expression_bytes,omitempty"`
	// HeldBytes is what one running request takes, for each rule that holds units for it. ScanBytes is the
	// most that reading answers takes.
	HeldBytes uint64 `json:"held_bytes,omitempty"`
	ScanBytes uint64 `json:"scan_bytes,omitempty"`
	// StatedBytes is the most that a worker keeps of what it reports to the quota service.
	StatedBytes uint64 `json:"stated_bytes,omitempty"`
	// DenialBytes is what the keys denied most take, once all rules deny.
	DenialBytes uint64 `json:"denial_bytes,omitempty"`
}

const (
	// heldStreamBytes is the most that a rule keeps of a running request, its hold and its place
	// among the streams: a worker's VM doubles its memory when it is full.
	// TestHoldsAreRenewedInPortions of the filter tests it.
	heldStreamBytes = 850
	// scannedStreams is how many answers a worker reads at once, and scannedBytes what it
	// keeps of one.
	scannedStreams = 16_384
	scannedBytes   = 4 << 10
	// A worker reports what it holds for at most statedKeys keys. For each it keeps at most
	// statedBytes: 330 bytes, and what a VM grows beyond its need.
	statedKeys  = 1 << 16
	statedBytes = 1 << 10
)

// Of returns what the policy takes. text is what workers read of it: policy.PushedJSON.
func Of(p *policy.Policy, text []byte) Footprint {
	var m Footprint
	largest := uint64(0) // bytes of a table
	counted, standsBy := map[string]bool{}, map[string]bool{}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Mode == policy.ModeOff || len(r.Limits) == 0 {
			continue
		}
		m.addHolds(r)
		if mayStandBy(r) && !standsBy[r.Counter] {
			standsBy[r.Counter] = true
			bytes := localTable(r).bytes
			m.StandbyBytes += bytes
			m.Bytes += bytes
			largest = max(largest, bytes)
		}
		if !counted[r.Counter] {
			counted[r.Counter] = true
			largest = max(largest, m.addCounter(r))
		}
	}
	m.RuleBytes = ruleBytes(p, len(text))
	m.ExpressionBytes = expressionBytes(p)
	m.DenialBytes = denialBytes(p)
	m.VanishedBytes = directory.WaitingTables * largest
	return m
}

// mayStandBy reports whether the rule counts in this Envoy while the quota service is silent.
func mayStandBy(r *policy.Rule) bool {
	return r.Scope == policy.ScopeCluster && r.OnUnavailable == policy.UnavailableLocal
}

// addCounter adds the first rule of a counter, and returns the bytes of its table beside the one
// that stands by.
func (m *Footprint) addCounter(r *policy.Rule) (bytes uint64) {
	m.Counters++
	m.Keys += keys(r)
	var t table
	switch {
	case r.Scope != policy.ScopeCluster:
		t = localTable(r)
	case !r.Holds():
		t = leaseTable(r)
		m.LeaseBytes += t.bytes
	case mayStandBy(r): // it holds, so only the table that stands by has slots
		t.slots = localTable(r).slots
	}
	m.Slots += t.slots
	m.Bytes += t.bytes
	return t.bytes
}

// table is what a rule uses of a table in the shared memory. Each page of it has pageBytes.
type table struct{ slots, bytes, pageBytes uint64 }

// localTable has what a rule counts in this Envoy.
func localTable(r *policy.Rule) table {
	windows := r.Columns()
	return usedPart(r, page.GeometryFor(windows, r.Capacity), page.HostBytes(windows, r.Capacity))
}

// leaseTable has what a rule leases from the quota service.
func leaseTable(r *policy.Rule) table {
	n := len(r.Columns())
	return usedPart(r, state.LeaseGeometry(n, r.Capacity), state.LeaseHostBytes(n, r.Capacity))
}

// addHolds adds what a rule needs that waits for answers.
func (m *Footprint) addHolds(r *policy.Rule) {
	if r.Holds() {
		m.HeldBytes = heldStreamBytes
	}
	if r.Settle != nil && r.Settle.To.Tokens() {
		m.ScanBytes = scannedStreams * scannedBytes
	}
	if r.Holds() && r.Scope == policy.ScopeCluster {
		most := uint64(statedKeys)
		if len(r.Key) == 0 {
			most = 1
		}
		m.StatedBytes = min(m.StatedBytes+most*statedBytes, statedKeys*statedBytes)
	}
}

// keys is how many keys a rule counts at a time. A rule without a key has one for all requests. A
// rule without a table has those that a worker reports to the quota service.
func keys(r *policy.Rule) uint64 {
	switch {
	case len(r.Key) == 0:
		return 1
	case r.Scope == policy.ScopeCluster && r.Holds() && r.OnUnavailable != policy.UnavailableLocal:
		return statedKeys
	}
	return uint64(r.Capacity)
}

// usedPart returns what a rule uses of its table. A page comes with its first key, so a rule
// without a key has one page.
func usedPart(r *policy.Rule, whole page.Geometry, bytes uint64) table {
	pageBytes := bytes / uint64(whole.Pages)
	if len(r.Key) > 0 {
		return table{whole.TotalSlots(), bytes, pageBytes}
	}
	onePage := page.Geometry{Pages: 1, Slots: whole.Slots}
	return table{onePage.TotalSlots(), pageBytes, pageBytes}
}
