package lease

import (
	"bytes"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/grants"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// LeaseSource is the source of units of a rule of scope cluster: units that this proxy has
// leased from the quota service, in a table from which all its workers take.
//
// Where Check has found the units is in Subject.Cluster.From. Take and Refund follow it:
//
//	From        Take                                      Refund
//	Allotted    takes from the subject's allotment        puts back there
//	LeaseTable  takes from the key's lease, and may       reads the lease anew, and puts back
//	            ask for more ahead of need                there
//	OwnShare    takes from the share, and notes in the    puts back into the share, and removes the
//	            lease what the service must charge later  note, unless the service has charged it
//	Nowhere     never called: a cost of 0 takes nothing   never called
//
// A lease is written in two ways:
//
//	as Check has read it  takeLease. If another worker has written it meanwhile, Take returns Mismatch, and the request
//	                      is checked again
//	read anew             takeShare, refundShare, refundLease, tellUncharged, noteInLease and Returns.CollectIdle, by
//	                      At.Change
type LeaseSource struct {
	clusterRule
	leases *grants.Leases

	keeps  bool // units may be kept for later requests: not with "lease: off"
	refill refill

	key []byte // memory for tableKey
}

// Check finds out what decides about the request: see clusterRule.
func (src *LeaseSource) Check(s *decide.Subject, wallNs int64) decide.Finding {
	found := src.check(s, wallNs)
	found.Known = isKnown(s)
	return found
}

func (src *LeaseSource) check(s *decide.Subject, wallNs int64) decide.Finding {
	c := src.begin(s, wallNs)
	if c.Allotment.Decides(s.Cost, c.MonotonicNs) {
		return byAllotment(s)
	}
	if !src.readLease(s) {
		return decide.Finding{Found: decide.Failed}
	}
	e, now := c.Lease, c.MonotonicNs
	switch {
	case e.Blocks(now):
		return deniedFor(s, e.WaitNs(now), decide.Blocked)
	case src.isFree(s):
		return atNoCost(s)
	case src.keeps && e.Left(now) >= s.Units: // the cost, and what other rules of the request take of the lease before
		c.From = cluster.LeaseTable
		return decide.Finding{Found: decide.HasRoom}
	case src.keeps && e.Denies(s.Units, now):
		return deniedFor(s, e.WaitNs(now), decide.Denied)
	case src.isSilent(e):
		return src.alone(s, decide.Silent)
	default:
		return src.leaveToService(s)
	}
}

// Recheck is Check.
func (src *LeaseSource) Recheck(s *decide.Subject, wallNs int64) decide.Finding {
	return src.Check(s, wallNs)
}

// isSilent reports whether the service answers nothing, or nothing about this key.
func (src *LeaseSource) isSilent(e *state.LeaseEntry) bool {
	return e.SilentUntilNs > e.NowNs || src.worker.Service.Silent
}

// tableKey is what the subject's lease is found by: its key and, if requests give limits, these. So units that were
// granted under one limit are not spent under another, and no denial is remembered under another.
func (src *LeaseSource) tableKey(s *decide.Subject) []byte {
	if !src.rule.Finder.IsRequested(&s.Subject) {
		return s.Key.Bytes
	}
	src.key = appendLimits(append(src.key[:0], s.Key.Bytes...), s)
	return src.key
}

// readLease reads the key's lease, and what the service has said last of the key. It returns false if the proxy's store
// fails.
func (src *LeaseSource) readLease(s *decide.Subject) (ok bool) {
	c := &s.Cluster
	if c.LeaseMemory == nil {
		c.LeaseMemory = new(state.LeaseEntry)
	}
	e := c.LeaseMemory
	if src.leases.Read(e, src.tableKey(s), s.Record.Now, c.MonotonicNs) != state.OK {
		return false
	}
	c.Lease = e
	c.MonotonicNs = e.NowNs // a later one, if another worker has written the lease since
	c.Standings = e.Standings
	return true
}

// askPart asks for the cost.
func (src *LeaseSource) askPart(s *decide.Subject) Part { return src.leasePart(s, s.Cost) }

// Take takes the cost from where Check has found it.
func (src *LeaseSource) Take(s *decide.Subject) state.Status {
	switch s.Cluster.From {
	case cluster.Allotted:
		s.Cluster.Allotment.Units -= s.Cost
		return state.OK
	case cluster.LeaseTable:
		return src.takeLease(s)
	case cluster.OwnShare:
		return src.takeShare(s)
	default:
		return state.Failed
	}
}

// takeLease takes units that the proxy has leased. If few are left, it asks ahead, by a refill.
func (src *LeaseSource) takeLease(s *decide.Subject) state.Status {
	e := s.Cluster.Lease
	s.Cluster.Taken = e.Spend(e.NowNs, s.Cost)
	e.Rate.Add(e.NowNs, src.refill.rateNs, s.Cost)
	isDue := src.beginRefill(e)
	taken := src.leases.Write(e)
	if isDue && taken == state.OK {
		src.worker.refills = append(src.worker.refills, src.leasePart(s, 0))
	}
	return taken
}

// Refund puts the units back to where they were taken from.
func (src *LeaseSource) Refund(s *decide.Subject, wallNs int64) bool {
	switch s.Cluster.From {
	case cluster.Allotted:
		s.Cluster.Allotment.Units += s.Cost
		return true
	case cluster.LeaseTable:
		return src.refundLease(s, wallNs)
	case cluster.OwnShare:
		return src.refundShare(s, wallNs)
	default:
		return false
	}
}

// refundLease puts units back into the lease. If it fails, they stay counted.
func (src *LeaseSource) refundLease(s *decide.Subject, wallNs int64) bool {
	c := &s.Cluster
	at := src.leases.At(c.Lease.Key())
	written := at.Change(wallNs, c.MonotonicNs, func(e *state.LeaseEntry) bool {
		isThere := e.WrittenNs != 0 // else another record has taken its place since
		for _, taken := range c.Taken {
			isThere = isThere && (taken.Units == 0 || e.Put(taken))
		}
		return isThere
	})
	if !written {
		return false
	}
	for i := range c.Taken {
		if taken := &c.Taken[i]; taken.Units > 0 {
			at.WatchAgain(taken.GrantID, c.MonotonicNs)
		}
	}
	return true
}

// giveBack gives the units back to the service.
func (src *LeaseSource) giveBack(s *decide.Subject) {
	src.leases.GiveBack(s.Cluster.Allotment.GrantUnits)
}

// Tables are the table of leases, and what counts in the place of a silent service: keys
// that are among the leases.
func (src *LeaseSource) Tables() []decide.Table {
	t := src.leases.Table()
	own := decide.Table{Table: t, OfRule: t.Windows(), Scratch: &src.worker.scratch}
	return append([]decide.Table{own}, src.clusterRule.Tables()...)
}

// Operate returns how many units of the key this proxy may still spend. While the service is silent, the subject has
// what this proxy has counted by itself.
func (src *LeaseSource) Operate(
	s *decide.Subject, _ decide.Operation, _ int, _ uint32, wallNs int64,
) (value int64, known bool, err error) {
	c := src.begin(s, wallNs)
	if !src.readLease(s) {
		return 0, false, local.ErrStore
	}
	e := c.Lease
	if src.isSilent(e) && !src.showShare(s) {
		return 0, false, local.ErrStore
	}
	return int64(e.Left(e.NowNs)) + src.leftOfOthers(s), c.From == cluster.OwnShare, nil
}

// leftOfOthers is how many units of the subject's key may be spent under other limits, which
// other requests give, as far as this worker keeps these.
func (src *LeaseSource) leftOfOthers(s *decide.Subject) (units int64) {
	own := src.tableKey(s)
	var e state.LeaseEntry
	for requested := range src.worker.definitions.requested {
		limits, ofRule := requested.limitsOf(src.firstDefinition)
		if !ofRule {
			continue
		}
		key := append(slices.Clone(s.Key.Bytes), limits...) // as tableKey has it
		if bytes.Equal(key, own) {
			continue
		}
		if src.leases.Read(&e, key, s.Record.Now, s.Cluster.MonotonicNs) == state.OK {
			units += int64(e.Left(e.NowNs))
		}
	}
	return units
}

// leaseOf is LeaseOf.
func (src *LeaseSource) leaseOf(s *decide.Subject) *result.Lease {
	out, e := &result.Lease{}, s.Cluster.Lease
	if e == nil { // it was not read
		return out
	}
	out.Units = e.Left(e.NowNs)
	if endNs := e.EndNs(e.NowNs); endNs > 0 {
		out.EndsNs = endNs - e.NowNs
	}
	if src.isSilent(e) {
		out.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return out
}
