package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
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
//	OwnShare    takes from the share, and notes in the    puts back into the share; the service
//	            lease what the service must charge later  charges it all the same
//	Nowhere     never called: a cost of 0 takes nothing   never called
type Source struct {
	clusterRule
	table *state.Leases

	keeps  bool // units may be kept for later requests: not with "lease: off"
	refill refill
	idleNs int64 // after which units that nobody takes go back

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
	if c.Allotment.Decides(s.Cost, s.Cluster.MonotonicNs) {
		return byAllotment(s, &c.Allotment)
	}
	if !src.readLease(s, c) {
		return decide.Finding{Found: decide.Failed}
	}
	e, now := c.Lease, s.Cluster.MonotonicNs
	switch {
	case e.Blocks(now):
		return deniedFor(s, e.WaitNs(now), decide.Blocked)
	case src.asksNothing(s):
		return forNothing(s)
	case src.keeps && e.Left(now) >= s.Units: // more than Cost, if other rules of the request take of the lease before
		s.Cluster.From = cluster.LeaseTable
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
	c, w := &s.Cluster, src.worker
	e := c.Lease
	c.Taken = e.Spend(e.NowNs, s.Cost)
	e.Rate.Add(e.NowNs, src.refill.rateNs, s.Cost)
	spent, refills := src.beginRefill(e)
	taken := src.write(e)
	if refills && taken == state.OK {
		w.refills = append(w.refills, src.leasePart(s, 0, spent))
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
		return src.local.Refund(s, wallNs)
	default:
		return false
	}
}

// refundLease puts units back into the lease, as of the instant at which they were taken. If it fails, they stay
// counted.
func (src *Source) refundLease(s *decide.Subject) bool {
	c := &s.Cluster
	at := leaseAt{src, c.Lease.Key()}
	written := at.change(s.Record.Now, c.MonotonicNs, func(e *state.LeaseEntry) bool {
		fits := e.WrittenNs != 0
		for _, taken := range c.Taken {
			fits = fits && (taken.Units == 0 || e.Put(taken))
		}
		return fits
	})
	if written == nil {
		return false
	}
	for _, taken := range c.Taken { // a visit may have found nothing of them left meanwhile
		if taken.Units > 0 {
			src.worker.Returns.watch(&at, taken.GrantID, c.MonotonicNs)
		}
	}
	return true
}

// takeBack has the units go back.
func (src *Source) takeBack(s *decide.Subject) {
	src.worker.Returns.giveBack(src, s.Cluster.Allotment.GrantLeft)
}

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
	e := new(state.LeaseEntry)
	if src.table.Read(e, src.tableKey(s), wallNs, s.Cluster.MonotonicNs) != state.OK {
		return 0, false, local.ErrStore
	}
	c.Lease = e
	if src.isSilent(e) && !src.showShare(s) {
		return 0, false, local.ErrStore
	}
	return int64(e.Left(e.NowNs)) + src.leftOfOthers(s), s.Cluster.From == cluster.OwnShare, nil
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

// While the service is silent, this proxy admits requests by its share of the limits. What these cost is Uncharged in
// the key's lease until the service has charged it. For example, with a timeout of 100 ms:
//
//	time     what happens                                           Uncharged            by
//	0 ms     A request asks. No answer comes.                       0
//	100 ms   Its time is over. It is admitted alone.                1 unit               takeShare
//	500 ms   The service is silent, so 4 more are admitted alone.   5 units              takeShare
//	1200 ms  The service answers again. A request asks, and its     5 units,             claimUncharged
//	         ask says Spent: 5.                                     told until 1300 ms
//	1205 ms  A request of another worker asks. Its ask says         the same             claimUncharged
//	         Spent: 0.
//	1210 ms  The first of both asks is answered: the service has    0                    writeAnswer
//	         charged 5 units.
//
// If the lease has units at 1200 ms, and no request asks, the next refill says Spent.
//
// What may go wrong with the ask that says Spent:
//
//	No answer to it comes by 1300 ms, or it    The next ask says Spent: 5 again. If the service has heard the first
//	is never sent: the talk joins it to an     one, it charges 5 units twice.
//	ask for the same units, or drops it.
//	The answer has Failed: the service cannot  The units stay Uncharged. The next ask says them.
//	reach the key.
//	The record is lost. For a new one in a     The service never hears of the units.
//	full page, state takes a record with
//	units Uncharged last.

// takeShare takes the cost of the proxy's share, and writes into the lease that the service has to charge it. If it
// cannot, the share gets the cost back: what the service never hears of would be admitted twice.
func (src *Source) takeShare(s *decide.Subject) state.Status {
	taken := src.local.Take(s)
	if taken != state.OK {
		return taken
	}
	at := leaseAt{src, s.Cluster.Lease.Key()}
	written := at.change(s.Record.Now, s.Cluster.MonotonicNs, func(e *state.LeaseEntry) bool {
		e.Uncharged.Add(s.Cost)
		return true
	})
	if written == nil {
		src.local.Refund(s, s.Record.Now)
		return state.Failed
	}
	return state.OK
}

// claimUncharged returns the units that the ask of a request has to say as Spent, and writes that it does. If another
// worker has written the lease meanwhile, it returns none: a later ask says them. Another ask may be granted
// units before the service hears of these.
func (src *Source) claimUncharged(e *state.LeaseEntry) (spent uint32) {
	spent = src.tellUncharged(e)
	if spent > 0 && src.write(e) != state.OK {
		return 0
	}
	return spent
}

// tellUncharged has an ask tell what is Uncharged until its timeout.
func (src *Source) tellUncharged(e *state.LeaseEntry) (spent uint32) {
	return e.Uncharged.Tell(e.NowNs, e.NowNs+src.worker.Service.TimeoutNs)
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
func (src *Source) readLease(s *decide.Subject, c *cluster.Carried) (ok bool) {
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

// A lease is written in two ways:
//
//	as Check has read it  takeLease and claimUncharged. If another worker has written it meanwhile, Take returns
//	                      Mismatch, and the request is checked again. claimUncharged leaves what it would claim to a
//	                      later ask
//	read anew             takeShare, refundLease, keepInLease and watchedGrant.collect, by leaseAt.change

// leaseAt is where the lease of one key lies, also when there is no request of the key any more.
type leaseAt struct {
	source *Source
	key    state.LeaseKey
}

// change reads the lease, at an instant of both clocks, and writes it as changed says, unless that returns false. If
// another worker has written the lease meanwhile, it begins anew with what is there by now, so it may call changed
// several times. It returns the lease as it is written, nil if it is not; the next change of any lease uses its memory.
func (at *leaseAt) change(wallNs, now int64, changed func(e *state.LeaseEntry) bool) (written *state.LeaseEntry) {
	src := at.source
	e := &src.worker.entry
	for range state.MaxRetries {
		if src.table.ReadHashed(e, at.key, wallNs, now) != state.OK || !changed(e) {
			return nil
		}
		switch src.write(e) {
		case state.OK:
			return e
		case state.Mismatch: // once more
		default:
			return nil
		}
	}
	return nil
}

// write writes a lease, and counts what the record held that it may replace.
func (src *Source) write(e *state.LeaseEntry) state.Status {
	written := src.table.Write(e)
	if written == state.OK {
		src.noteLost(e.Replaced)
	}
	return written
}

// beginRefill reports whether units are to be asked for ahead of need, and returns those that the refill has to say as
// Spent. takeLease writes the lease, together with what it takes. Until the timeout no worker of this proxy asks ahead
// again, or until the answer to any ask of the key: each asks ahead, so the lease has more units then.
func (src *Source) beginRefill(e *state.LeaseEntry) (spent uint32, begins bool) {
	service := &src.worker.Service
	if service.Silent || e.RefillUntilNs > e.NowNs || !src.refill.isDue(e) {
		return 0, false
	}
	e.RefillUntilNs = e.NowNs + service.TimeoutNs
	return src.tellUncharged(e), true
}

// refill says when a key's next units are asked for ahead of need, and how many. It looks as far
// ahead as quota.HorizonNs says, and measures how fast units are taken over half of that. So the
// rate follows a change of traffic within the time for which units are asked.
//
// For example, a limit of 1000 a minute has a horizon of 6 s. A key of which 300 units were taken in
// the last 3 s needs 600 within 6 s, so that many are asked for. They are asked for when what is
// left lasts less than 100 ms: when fewer than 10 units are left.
type refill struct {
	rateNs int64 // over which the rate is measured: half of the horizon
	leadNs int64 // how long what is left must last
}

// maxLeadNs is the timeout by default: by then the service has answered, or it is silent.
const maxLeadNs = 100_000_000

func refillOf(windows []limit.Window) refill {
	half := quota.HorizonNs(windows) / 2
	return refill{rateNs: max(half, 1), leadNs: min(half, maxLeadNs)}
}

// rate is how many units of the key were taken in the last rateNs.
func (r *refill) rate(e *state.LeaseEntry) uint32 { return e.Rate.Over(e.NowNs, r.rateNs) }

// ahead is how many units the key needs within the horizon, which is twice rateNs.
func (r *refill) ahead(e *state.LeaseEntry) uint32 {
	rate := r.rate(e)
	return limit.AddSaturating(rate, rate)
}

// isDue reports whether what is left lasts less than leadNs.
func (r *refill) isDue(e *state.LeaseEntry) bool {
	return float64(e.Left(e.NowNs))*float64(r.rateNs) < float64(r.rate(e))*float64(r.leadNs) // beyond 64 bits
}
