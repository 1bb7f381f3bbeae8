package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/grants"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Source is the source of units of a rule of scope cluster: units that this proxy has
// leased from the quota service, in a table from which all its workers take.
//
// Check goes down this list to the first line that applies:
//
//	line                                               outcome                                   by
//	the request has waited, and its allotment decides  HasRoom from Allotted, Denied or Blocked  byAllotment
//	the proxy's store fails                            Failed                                    readLease
//	the key's lease says that the key is blocked       Blocked
//	cost 0, and the rule has no block                  Denied by a limit of 0, or HasRoom        forNothing
//	the key's lease has enough units                   HasRoom from LeaseTable
//	the key's lease has a denial that is not over      Denied
//	the service is silent                              what OwnShare decides, or Silent          alone
//	the request has waited, and no answer came         what OwnShare decides, or Silent          askService
//	too many requests wait, or the service took no     Contended                                 askService
//	more asks
//	none of these: the service may have units          Pending: the request waits                askService
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
type Source struct {
	clusterRule
	table *grants.Table

	keeps  bool // units may be kept for later requests: not with "lease: off"
	refill refill

	key []byte // memory for tableKey
}

// Check finds out what decides about the request: see Source.
func (src *Source) Check(s *decide.Subject, wallNs int64) decide.Finding {
	found := src.check(s, wallNs)
	found.Known = isKnown(s)
	return found
}

func (src *Source) check(s *decide.Subject, wallNs int64) decide.Finding {
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
	case src.asksNothing(s):
		return forNothing(s)
	case src.keeps && e.Left(now) >= s.Units: // more than Cost, if other rules of the request take of the lease before
		c.From = cluster.LeaseTable
		return decide.Finding{Found: decide.HasRoom}
	case src.keeps && e.Denies(s.Units, now):
		return deniedFor(s, e.WaitNs(now), decide.Denied)
	case src.isSilent(e):
		return src.alone(s, decide.Silent)
	default:
		return src.askService(s)
	}
}

// Recheck is Check.
func (src *Source) Recheck(s *decide.Subject, wallNs int64) decide.Finding {
	return src.Check(s, wallNs)
}

// isSilent reports whether the service answers nothing, or nothing about this key.
func (src *Source) isSilent(e *state.LeaseEntry) bool {
	return e.SilentUntilNs > e.NowNs || src.worker.Service.Silent
}

// tableKey is what the subject's lease is found by: its key and, if requests give limits, these. So units that were
// granted under one limit are not spent under another, and no denial is remembered under another.
func (src *Source) tableKey(s *decide.Subject) []byte {
	if !src.rule.Finder.IsRequested(&s.Subject) {
		return s.Key.Bytes
	}
	src.key = appendLimits(append(src.key[:0], s.Key.Bytes...), s)
	return src.key
}

// readLease reads the key's lease, and what the service has said last of the key. It returns false if the proxy's store
// fails.
func (src *Source) readLease(s *decide.Subject) (ok bool) {
	c := &s.Cluster
	if c.LeaseMemory == nil {
		c.LeaseMemory = new(state.LeaseEntry)
	}
	e := c.LeaseMemory
	if src.table.Read(e, src.tableKey(s), s.Record.Now, c.MonotonicNs) != state.OK {
		return false
	}
	c.Lease = e
	c.MonotonicNs = e.NowNs
	c.Standings = e.Standings
	return true
}

// beginAsk begins an ask for the cost. It may write the key's lease, which Check has read: see claimUncharged.
func (src *Source) beginAsk(s *decide.Subject) Part {
	return src.leasePart(s, s.Cost, src.claimUncharged(s.Cluster.Lease))
}

// Take takes the cost from where Check has found it.
func (src *Source) Take(s *decide.Subject) state.Status {
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
func (src *Source) takeLease(s *decide.Subject) state.Status {
	e := s.Cluster.Lease
	s.Cluster.Taken = e.Spend(e.NowNs, s.Cost)
	e.Rate.Add(e.NowNs, src.refill.rateNs, s.Cost)
	told, refills := src.beginRefill(e)
	taken := src.table.Write(e)
	if refills && taken == state.OK {
		src.worker.refills = append(src.worker.refills, src.leasePart(s, 0, told))
	}
	return taken
}

// Refund puts the units back to where they were taken from.
func (src *Source) Refund(s *decide.Subject, wallNs int64) bool {
	switch s.Cluster.From {
	case cluster.Allotted:
		s.Cluster.Allotment.Units += s.Cost
		return true
	case cluster.LeaseTable:
		return src.refundLease(s)
	case cluster.OwnShare:
		return src.refundShare(s, wallNs)
	default:
		return false
	}
}

// refundLease puts units back into the lease, as of the instant at which they were taken. If it fails, they stay
// counted.
func (src *Source) refundLease(s *decide.Subject) bool {
	c := &s.Cluster
	at := src.table.At(c.Lease.Key())
	written := at.Change(s.Record.Now, c.MonotonicNs, func(e *state.LeaseEntry) bool {
		fits := e.WrittenNs != 0
		for _, taken := range c.Taken {
			fits = fits && (taken.Units == 0 || e.Put(taken))
		}
		return fits
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

// takeBack has the units go back.
func (src *Source) takeBack(s *decide.Subject) {
	src.table.GiveBack(s.Cluster.Allotment.GrantLeft)
}

// A lease is written in two ways:
//
//	as Check has read it  takeLease and claimUncharged. If another worker has written it meanwhile, Take returns
//	                      Mismatch, and the request is checked again. claimUncharged leaves what it would claim to a
//	                      later ask
//	read anew             takeShare, refundShare, refundLease, keepInLease and Returns.CollectIdle, by At.Change

// Tables are the table of leases, and what counts in the place of a silent service: keys
// that are among the leases.
func (src *Source) Tables() []decide.Table {
	t := src.table.Table()
	own := decide.Table{Table: t, OfRule: t.Windows(), Scratch: &src.worker.scratch}
	return append([]decide.Table{own}, src.clusterRule.Tables()...)
}

// Operate returns how many units of the key this proxy may still spend. While the service is silent, the subject has
// what this proxy has counted by itself.
func (src *Source) Operate(
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
func (src *Source) leftOfOthers(s *decide.Subject) (units int64) {
	own, defs := string(appendLimits(nil, s)), &src.worker.definitions
	var e state.LeaseEntry
	for requested := range defs.requested {
		limits, ofRule := requested.limitsOf(src.firstDefinition)
		if !ofRule || limits == own {
			continue
		}
		key := append(append([]byte(nil), s.Key.Bytes...), limits...) // as tableKey has it
		if src.table.Read(&e, key, s.Record.Now, s.Cluster.MonotonicNs) == state.OK {
			units += int64(e.Left(e.NowNs))
		}
	}
	return units
}

// leaseOf is LeaseOf.
func (src *Source) leaseOf(s *decide.Subject) *result.Lease {
	told, e := &result.Lease{}, s.Cluster.Lease
	if e == nil { // it was not read
		return told
	}
	for i := range e.Grants {
		if left := &e.Grants[i]; left.Units > 0 && left.EndNs > e.NowNs {
			told.EndsNs = max(told.EndsNs, left.EndNs-e.NowNs)
		}
	}
	told.Units = e.Left(e.NowNs)
	if src.isSilent(e) {
		told.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return told
}
